"""Re-verification: the new verdict is the one that a run would have given, and what cannot be known is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Episode, SessionInfo, Sessions, State, Task, Verdict, tool
from stateroom.errors import CannotWrite, StoreUnavailable
from stateroom.gallery import WeatherEnvironment
from stateroom.model import Answer, Model, ModelSource, Request, Scripted, Usage, function_call, message
from stateroom.rollout import RescoreReport, RunFiles, rescore_rollouts, run
from stateroom.store import Store
from tests.messages import raises, says
from tests.plans import make_run
from tests.rollout.conftest import DownStore
from tests.rows import OWN, rows, without, write_rows


class Pile(State):
    stones: list[int] = []


class Fame(State):
    points: int = 0


class PileTask(Task):
    wanted: int = 2
    user: str = "alice"


class PileEnvironment(Environment[Pile, PileTask]):
    """Piles up stones."""

    name = "pile"

    @tool
    def put(self, state: Pile, weight: int) -> int:
        """Put a stone on the pile."""
        state.stones.append(weight)
        return len(state.stones)

    @tool
    def praise(self, user: Fame) -> int:
        """Praise whoever piles."""
        user.points += 1
        return user.points

    def verify(self, state: Pile, episode: Episode) -> float | Verdict:
        return float(len(state.stones) == episode.task.wanted)


def judging(name: str, verify: Callable[..., Any], base: Any = PileEnvironment) -> Any:
    """The same environment with another verifier."""
    return type(name, (base,), {"name": base.name, "verify": verify})


Detailed = judging(
    "Detailed",  # tells more, and some of it under a name that is the task's
    lambda self, state: Verdict(
        0.5, {"part": 0.5}, {"height": len(state.stones)}, "so so", {"wanted": "covered", "seen": [1]}
    ),
)

TWO = ModelSource(
    "two", lambda seed: Scripted([*([function_call("put", f"c{n}", weight=n + 1)] for n in range(2)), "done"])
)
"""Puts two stones."""

SAYS = ModelSource("says", lambda seed: Scripted([[function_call("say", "c", text="hello")], "done"]))

REVERIFIED = "_stateroom_reverified"
"""What a rescored row says of the verdict before."""

TASKS = [{"wanted": wanted} for wanted in (2, 3, 2)]


@pytest.fixture
def collect(tmp_path: Path, url: str) -> Callable[..., Any]:
    """Run episodes; gives the rollouts file."""

    async def collect(environment: Any, name: str = "old", **settings: Any) -> Path:
        plan: dict[str, Any] = {"model": TWO, "tasks": TASKS, "store": url} | settings
        files = RunFiles(tmp_path / f"{name}.jsonl")
        report = await run(make_run(environment=environment, files=files, **plan))
        assert report.failed == 0
        return files.rollouts

    return collect


async def again(
    environment: Any, rollouts: Path, store: Store | None, name: str = "new", at: int | None = None
) -> tuple[RescoreReport, RunFiles]:
    files = RunFiles(rollouts.parent / f"{name}.jsonl")
    return await rescore_rollouts(environment, rollouts, files, store, at=at), files


async def test_new_rows_are_what_a_run_with_the_new_verifier_writes_and_changes_are_told(
    collect: Any, store: Store
) -> None:
    old = await collect(PileEnvironment(), repeats=2)
    report, files = await again(Detailed(), old, store)
    told = rows(await collect(Detailed(), "told", repeats=2))
    new = rows(files.rollouts)
    assert [without(row, *OWN, REVERIFIED) for row in new] == [without(row, *OWN) for row in told]
    assert [row["_stateroom_session"] for row in new] == [row["_stateroom_session"] for row in rows(old)]
    assert json.loads(files.metrics.read_text()) == json.loads(RunFiles(old.parent / "told.jsonl").metrics.read_text())
    assert not files.failures.exists()
    assert report.metrics["agent_metrics"]["mean/reward_components/part"] == 0.5
    assert sorted([change[1:] for change in report.changes]) == [(0.0, 0.5)] * 2 + [(1.0, 0.5)] * 4
    changed = [(task.task, task.episodes, task.before, task.after) for task in report.tasks()]
    assert changed == [(0, 2, 1.0, 0.5), (1, 2, 0.0, 0.5), (2, 2, 1.0, 0.5)]


async def test_a_row_may_be_judged_again_and_nothing_of_the_old_verdict_lingers(collect: Any, store: Store) -> None:
    ran = await collect(PileEnvironment())
    old = ran.parent / "labelled.jsonl"  # what somebody has added stays
    write_rows(old, ({**row, "label": "good"} for row in rows(ran)))
    _, first = await again(Detailed(), old, store)
    _, second = await again(PileEnvironment(), first.rollouts, store, "newer")
    assert [without(row, REVERIFIED) for row in rows(second.rollouts)] == rows(old)
    assert [row[REVERIFIED]["reward"] for row in rows(second.rollouts)] == [0.5] * 3


async def test_nothing_is_written_to_the_store(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment())
    sessions = [row["_stateroom_session"] for row in rows(old)]
    before = [await store.maintenance.export(session) for session in sessions]
    sizes = await store.maintenance.sizes()
    await again(Detailed(), old, store)
    assert [await store.maintenance.export(session) for session in sessions] == before
    assert await store.maintenance.sizes() == sizes


def by_luck(self: Any, rng: Any, clock: Any, new_id: Any, session: SessionInfo) -> Verdict:
    told = [rng.random(), clock.now().isoformat(), new_id(), session.id, session.step, session.task.wanted]
    return Verdict(rng.random(), details={"told": told})


Lucky = judging("Lucky", by_luck)


async def test_luck_and_time_are_those_of_the_first_verdict(collect: Any, store: Store) -> None:
    old = await collect(Lucky())
    _, files = await again(Lucky(), old, store)
    assert [without(row, REVERIFIED) for row in rows(files.rollouts)] == rows(old)


def by_the_way(self: Any, episode: Episode) -> Verdict:
    weights = [call.input["weight"] for call in episode.calls()]
    return Verdict(1.0, details={"weights": weights, "heights": [len(state.stones) for state in episode.states()]})


LookingBack = judging("LookingBack", by_the_way)


@pytest.mark.parametrize(
    ("at", "height", "revision"),  # what is said has revisions too: seed, message, call, message, call, message
    [(1, 0, 1), (2, 0, 2), (3, 1, 3), (5, 2, 5), (6, 2, 6), (-1, 1, 4), (-2, 0, 2)],
)
async def test_any_state_on_the_way_can_be_judged(
    collect: Any, store: Store, at: int, height: int, revision: int
) -> None:
    _, files = await again(Detailed(), await collect(PileEnvironment()), store, at=at)
    assert {row["height"] for row in rows(files.rollouts)} == {height}
    assert {row[REVERIFIED]["revision"] for row in rows(files.rollouts)} == {revision}


@pytest.mark.parametrize("at", [7, -3])
async def test_a_state_that_was_not_on_the_way_is_refused(collect: Any, store: Store, at: int) -> None:
    report, files = await again(Detailed(), await collect(PileEnvironment()), store, at=at)
    assert (report.refused, report.rows) == (3, [])
    says(rows(files.failures)[0]["error"])


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_expired_and_closed_sessions_with_snapshots_will_do(
    collect: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await collect(PileEnvironment())
    for row in rows(old):
        head = await store.head(row["_stateroom_session"])
        assert head.closed
    monkeypatch.setattr("time.time", lambda: 1e11)
    report, files = await again(Detailed(), old, store)
    assert (len(report.rows), {row["height"] for row in rows(files.rollouts)}) == (3, {2})


# Shared states.


def by_fame(self: Any, user: Fame) -> float:
    return float(user.points)


Famous = judging("Famous", by_fame)


async def test_shared_states_are_those_of_then(collect: Any, store: Store) -> None:
    sessions = Sessions[Any](Famous(), store)
    await (await sessions.seed({})).call("praise")
    old = await collect(Famous())
    await (await sessions.seed({})).call("praise")
    report, _ = await again(Famous(), old, store)
    assert [change[1:] for change in report.changes] == [(1.0, 1.0)] * 3


@pytest.mark.parametrize("why", ["no verdict has seen it", "another revision", "made anew"])
async def test_a_shared_state_that_is_not_that_of_then_is_refused(collect: Any, store: Store, why: str) -> None:
    old = await collect(PileEnvironment() if why == "no verdict has seen it" else Famous())
    if why == "made anew":
        await store.delete("user:pile:alice")
        await Sessions[Any](Famous(), store).seed({})
        await (await Sessions[Any](Famous(), store).seed({})).user()
    report, files = await again(Famous(), old, store, at=2 if why == "another revision" else None)
    assert report.refused == 3
    says(rows(files.failures)[0]["error"])
    if why == "another revision":
        report, _ = await again(Famous(), old, store, "judged", at=6)
        assert report.refused == 0


# What is refused.


async def refuses(rollouts: Path, store: Store, change: dict[str, Any], environment: Any) -> None:
    """One of the rows, changed like this, is refused, and says why; the others are judged."""
    first, *others = rows(rollouts)
    changed = rollouts.parent / "changed.jsonl"
    write_rows(changed, [without({**first, **change}, *(name for name in change if change[name] is None)), *others])
    report, files = await again(environment, changed, store)
    assert (report.refused, len(report.rows)) == (1, 2)
    [failure] = rows(files.failures)
    assert failure["_ng_failure_class"] == "refused"
    assert failure["_ng_task_index"] == 0
    says(failure["error"])


@pytest.mark.parametrize("kind", ["missing", "gone", "of another environment", "never judged"])
async def test_a_row_without_a_session_that_was_judged_is_refused(collect: Any, store: Store, kind: str) -> None:
    other = type("Other", (PileEnvironment,), {"name": "other"})
    session: str | None = {"missing": None, "gone": "gone"}.get(kind)
    if kind in ("of another environment", "never judged"):
        seeded = await Sessions[Any](PileEnvironment() if kind == "never judged" else other(), store).seed({})
        session = seeded.id
        if kind == "of another environment":
            await seeded.verify()
    await refuses(await collect(PileEnvironment()), store, {"_stateroom_session": session}, Detailed())


async def test_the_second_row_of_an_episode_and_half_a_row_are_refused(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment())
    write_rows(twins := old.parent / "twins.jsonl", [*rows(old), rows(old)[0]])
    with twins.open("ab") as file:
        file.write(b'{"_ng_task_index": 0, "_ng_')
    report, files = await again(Detailed(), twins, store)
    assert (len(report.rows), report.refused) == (3, 2)
    assert "line 5" in files.failures.read_text()


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_a_row_whose_past_was_pruned_is_refused_if_that_is_asked_for(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment())
    await store.prune(rows(old)[0]["_stateroom_session"], 3)
    await refuses(old, store, {}, LookingBack())
    report, _ = await again(Detailed(), old, store, "last")
    assert len(report.rows) == 3


async def test_a_row_with_another_response_than_was_judged_is_refused(collect: Any, store: Store) -> None:
    reading = judging("Reading", lambda self, episode: float(len(episode.response["output"])))()
    await refuses(await collect(reading), store, {"response": {"output": []}}, reading)


async def test_a_verifier_that_raises_fails_its_row_alone(collect: Any, store: Store) -> None:
    raising = judging("Raising", lambda self, episode: {2: 1.0, 3: None}[episode.task.wanted] or 1 / 0)
    report, files = await again(raising(), await collect(PileEnvironment()), store)
    assert len(report.rows) == 2
    [failure] = rows(files.failures)
    assert (failure["_ng_failure_class"], failure["error"]) == ("environment", "ZeroDivisionError: division by zero")


async def test_a_store_that_fails_is_no_rows_fault(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment())
    with pytest.raises(StoreUnavailable):
        await again(Detailed(), old, DownStore(store))
    report, _ = await again(Detailed(), old, store)
    assert len(report.rows) == 3


# Going on.


async def test_it_goes_on_where_it_was_interrupted(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment(), repeats=4)
    _, whole = await again(Detailed(), old, store, "whole")
    _, part = await again(Detailed(), old, store, "part")
    lines = part.rollouts.read_bytes().splitlines(keepends=True)
    part.rollouts.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    part.metrics.unlink()
    write_rows(part.failures, [{"left": "over"}])
    judged: list[Any] = []
    counted = judging("Detailed", lambda self, state: judged.append(state) or Detailed.verify(self, state))
    report, _ = await again(counted(), old, store, "part")
    assert (len(judged), report.resumed, len(report.rows)) == (7, 5, 12)
    assert rows(part.rollouts) == rows(whole.rollouts)
    assert part.metrics.read_bytes() == whole.metrics.read_bytes()
    assert not part.failures.exists()


async def test_what_was_refused_is_tried_again(collect: Any, store: Store) -> None:
    old = await collect(PileEnvironment())
    lost = rows(old)[0]["_stateroom_session"]
    record = await store.maintenance.export(lost)
    await store.delete(lost)
    report, files = await again(Detailed(), old, store)
    assert (report.refused, len(report.rows)) == (1, 2)
    await store.put(record)
    report, _ = await again(Detailed(), old, store)
    assert (report.refused, report.resumed, len(report.rows)) == (0, 2, 3)
    assert not files.failures.exists()


@pytest.mark.parametrize("other", ["rollouts", "environment", "revision"])
async def test_it_does_not_go_on_with_something_else(collect: Any, store: Store, other: str) -> None:
    old = await collect(PileEnvironment())
    _, files = await again(Detailed(), old, store)
    before = files.rollouts.read_bytes()
    if other == "rollouts":
        old = await collect(PileEnvironment(), "others")
    with raises(CannotWrite):
        await again(
            PileEnvironment() if other == "environment" else Detailed(), old, store, at={"revision": 2}.get(other)
        )
    assert files.rollouts.read_bytes() == before


# Without a state.


class Echo(Environment):
    """Says what it is told."""

    name = "echo"

    @tool
    def say(self, text: str) -> str:
        """Say something."""
        return text

    def verify(self, episode: Episode) -> float | Verdict:
        return 0.0


def by_what_was_said(self: Any, episode: Episode) -> Verdict:
    said = [item["output"] for item in episode.response["output"] if item["type"] == "function_call_output"]
    fields = sorted(name for name in episode.task.model_dump() if not name.startswith("_"))
    return Verdict(float(len(said)), details={"said": said, "wanted": "covered", "fields": fields})


EchoJudge = judging("EchoJudge", by_what_was_said, Echo)


async def test_rows_without_a_state_are_all_that_is_needed(collect: Any) -> None:
    old = await collect(Echo(), model=SAYS)
    _, files = await again(EchoJudge(), old, None)
    told = rows(await collect(EchoJudge(), "told", model=SAYS))
    assert [without(row, *OWN, REVERIFIED) for row in rows(files.rollouts)] == [without(row, *OWN) for row in told]
    _, files = await again(Echo(), files.rollouts, None, "newer")
    found = [without(row, REVERIFIED, "wanted") for row in rows(files.rollouts)]  # what it covered is not known there
    assert found == [without(row, "wanted") for row in rows(old)]
    _, files = await again(Echo(), RunFiles(old.parent / "told.jsonl").rollouts, None, "newest")
    assert [without(row, *OWN, REVERIFIED) for row in rows(files.rollouts)] == [without(row, *OWN) for row in rows(old)]


async def test_luck_that_nothing_has_recorded_is_refused(collect: Any) -> None:
    chancy = judging("Chancy", lambda self, rng: rng.random(), Echo)
    report, files = await again(chancy(), await collect(Echo(), model=SAYS), None)
    assert (report.refused, report.rows) == (3, [])
    says(rows(files.failures)[0]["error"])


async def test_tokens_and_their_metrics_stay(tmp_path: Path) -> None:
    class Talks(Model):
        async def answer(self, request: Request) -> Answer:
            return Answer([message("Sunny.")], Usage(5, 2))

    plan = make_run(
        WeatherEnvironment(), ModelSource("talks", lambda seed: Talks()), [{}], RunFiles(tmp_path / "x.jsonl")
    )
    before = (await run(plan)).metrics["agent_metrics"]
    report = await rescore_rollouts(plan.environment, plan.files.rollouts, RunFiles(tmp_path / "again.jsonl"))
    assert report.metrics["agent_metrics"] == before
    assert before["mean/total_tokens"] == 7
