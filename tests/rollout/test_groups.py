"""Groups: episodes of one task that start from one state."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, tool
from stateroom.model import Item, ModelSource, Policy, function_call, message, outputs_of
from stateroom.rollout import Report, RunFiles, RunPlan, run
from stateroom.session import Clock
from stateroom.store import open_store
from tests.plans import make_run
from tests.rows import rows


class Dealt(State):
    hand: list[str] = []
    drawn: list[float] = []


class DealtEnvironment(Environment[Dealt]):
    """A hand of cards that luck deals."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def seed(self, task: Any, rng: Random, clock: Clock, new_id: Callable[[], str]) -> Dealt:
        self.events.append(f"seed {task.name}")
        if task.name == "none":
            raise LookupError("no cards")
        return Dealt(hand=[f"{rng.random()} {clock.now()} {new_id()}"])

    @tool
    def draw(self, state: Dealt, rng: Random) -> Any:
        """Draw a card."""
        state.drawn.append(rng.random())
        return [state.hand, state.drawn]

    def verify(self, state: Dealt, episode: Any) -> float:
        self.events.append(f"verify {episode.task.name}")
        return float(len(state.drawn))


class Oracle(Environment):
    """Luck without a state."""

    @tool
    def draw(self, rng: Random) -> float:
        """Draw a card."""
        return rng.random()

    def verify(self) -> float:
        return 1.0


class Draws(Policy):
    """Draws a card, or two."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if len(outputs_of(conversation)) >= 1 + self.rng.randrange(2):
            return [message("done")]
        return [function_call("draw", "c")]


def plan(tmp_path: Path, name: str = "out", **changes: Any) -> RunPlan:
    settings: dict[str, Any] = {"environment": DealtEnvironment(), "tasks": [{"name": "a"}, {"name": "b"}]}
    settings |= {"files": RunFiles(tmp_path / f"{name}.jsonl"), "store": f"sqlite:///{tmp_path / name}.db"}
    return make_run(model=ModelSource("draws", Draws), group=4, **(settings | changes))


async def grouped(given: RunPlan) -> tuple[Report, list[dict[str, Any]]]:
    return await run(given), rows(given.files.rollouts)


async def test_the_members_of_a_group_are_forks_of_one_state(tmp_path: Path) -> None:
    given = plan(tmp_path)
    _, done = await grouped(given)
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in done]
    assert keys == [(task, member) for task in range(2) for member in range(4)]
    firsts = [outputs_of(row["response"]["output"])[0] for row in done]
    assert firsts[0] == firsts[1] == firsts[2] == firsts[3]  # the hand, and the luck of the first card
    assert firsts[4] == firsts[5] == firsts[6] == firsts[7] != firsts[0]
    assert {row["tool_calls"] for row in done} == {1, 2}  # and yet they go their own ways
    parents = [row["_stateroom_parent"] for row in done]
    assert all(parent["revision"] == 1 for parent in parents)
    assert len({row["_stateroom_session"] for row in done}) == 8
    async with open_store(given.store) as store:
        for task in range(2):
            (parent,) = {parent["session"] for parent in parents[4 * task : 4 * task + 4]}
            assert (await store.head(parent)).closed
        heads = await store.heads(limit=100)
        assert len(heads) == 10
        await store.delete(parents[0]["session"])
        member = await Sessions[Any](given.environment, store).open(done[0]["_stateroom_session"], include_closed=True)
        kinds = [entry.kind async for entry in member.log()]
        assert kinds == ["seed", *["message", "call"] * done[0]["tool_calls"], "message", "verdict", "close"]


async def test_a_group_is_seeded_when_its_turn_comes(tmp_path: Path) -> None:
    given = plan(tmp_path, concurrency=1)
    await run(given)
    events = given.environment.events  # type: ignore[attr-defined]
    assert events == ["seed a", *["verify a"] * 4, "seed b", *["verify b"] * 4]


async def test_a_group_that_cannot_be_seeded_fails_as_one(tmp_path: Path) -> None:
    given = plan(tmp_path, tasks=[{"name": "none"}, {"name": "a"}])
    report, done = await grouped(given)
    failed = rows(given.files.failures)
    assert (report.failed, [row["name"] for row in done]) == (4, ["a"] * 4)
    assert [row["_ng_rollout_index"] for row in failed] == [0, 1, 2, 3]
    assert {row["error"] for row in failed} == {"LookupError: no cards"}
    assert {row["_ng_failure_class"] for row in failed} == {"environment"}
    assert given.environment.events.count("seed none") == 1  # type: ignore[attr-defined]
    assert not any("_stateroom_session" in row for row in failed)


async def test_without_a_state_members_have_one_seed(tmp_path: Path) -> None:
    _, done = await grouped(plan(tmp_path, environment=Oracle()))
    firsts = [outputs_of(row["response"]["output"])[0] for row in done]
    assert len(set(firsts[:4])) == len(set(firsts[4:])) == 1
    assert firsts[0] != firsts[4]
    assert not any("_stateroom_parent" in row for row in done)
    assert len({row["_stateroom_session"] for row in done}) == 8


async def test_a_run_of_groups_can_be_cancelled(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    class Waits(DealtEnvironment):
        async def seed(self, task: Any) -> Dealt:
            waiting.set()
            await asyncio.Event().wait()
            return Dealt()

    running = asyncio.create_task(run(plan(tmp_path, environment=Waits())))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
