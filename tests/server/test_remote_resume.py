"""Runs on a server that are interrupted, and go on: in the same sessions, if what their agents said was kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Episode, SessionInfo, State, tool
from stateroom.errors import ModelUnavailable
from stateroom.jsonl import Appender
from stateroom.model import Answer, Item, Model, ModelSource, Request, function_call, message, outputs_of
from stateroom.rollout import Report, RunFiles, RunPlan, run
from stateroom.store import open_store
from tests.plans import make_run
from tests.rows import comparable, rows

EPISODES = 5


class Pile(State):
    stones: list[str] = []


class PileEnvironment(Environment[Pile]):
    """Piles up stones, for somebody who has a word to say at the end."""

    name = "pile"

    def __init__(self) -> None:
        self.put: list[str] = []

    @tool
    def put_stone(self, state: Pile, session: SessionInfo, rng: Any) -> int:
        """Put a stone on the pile."""
        self.put.append(f"{session.id} {session.call_id}")
        state.stones.append(f"{rng.random()}")
        return len(state.stones)

    @tool(effect="read")
    def look(self, state: Pile) -> list[str]:
        """Look at the pile."""
        return state.stones

    def reply(self, state: Pile, message: str) -> str | None:
        state.stones.append(message)
        return "Is that all?" if len(state.stones) < 5 else None

    def verify(self, state: Pile, episode: Episode) -> float:
        return float(len(state.stones)) + len(episode.response["output"]) / 100


class Weighing(Environment):
    """Without a state: what a stone weighs is all that can be asked."""

    name = "weighing"

    @tool
    def put_stone(self, rng: Any) -> float:
        """Weigh a stone."""
        return float(rng.random())

    @tool(effect="read")
    def look(self) -> int:
        """See the same each time."""
        return 7

    def verify(self, episode: Episode) -> float:
        return float(len(outputs_of(episode.response["output"])))


class Mason(Model):
    """Puts three stones, looks at them between two, and says so; at some number of answers it cannot be reached."""

    name = "mason"

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.away_at: int | None = None

    async def answer(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        if request.step == self.away_at:
            raise ModelUnavailable("not here")
        self.asked.append((request.seed, request.step))
        calls: list[list[Item]] = [
            [function_call("put_stone", "a")],
            [function_call("look", "b"), function_call("put_stone", "c"), function_call("look", "d")],
            [function_call("put_stone", "e")],
        ]
        return Answer(calls[request.step] if request.step < len(calls) else [message(f"{request.step}")])


class Site:
    """A run on a server, as often as somebody goes on with it."""

    def __init__(self, folder: Path, environment: Environment[Any, Any], store: str) -> None:
        self.environment = environment
        self.model = Mason()
        self.files = RunFiles(folder / "there.jsonl")
        self.whole = RunFiles(folder / "here.jsonl")
        self.store = store

    def plan(self, files: RunFiles, **more: Any) -> RunPlan:
        model = ModelSource("mason", lambda seed: self.model)
        tasks = [{"number": number} for number in range(EPISODES)]
        return make_run(environment=self.environment, model=model, tasks=tasks, files=files, **more)

    async def run(self, server: str, *, resume: bool = False) -> Report:
        return await run(self.plan(self.files, server=server, store=self.store, resume=resume))

    async def is_as_here(self) -> bool:
        """Whether it has come to what it would have come to without a server, in one piece."""
        await run(self.plan(self.whole))
        return comparable(self.files.rollouts) == comparable(self.whole.rollouts)


@pytest.mark.parametrize("away_at", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [PileEnvironment, Weighing])
async def test_an_interrupted_run_comes_to_the_same(
    serve: Any, tmp_path: Path, kind: type[Environment[Any, Any]], away_at: int, store_url: str
) -> None:
    served = await serve(kind())
    site = Site(tmp_path, kind(), store_url)
    site.model.away_at = away_at
    assert (await site.run(served.url)).failed == EPISODES
    site.model.away_at = None
    assert (await site.run(served.url, resume=True)).failed == 0
    repeated = len(site.model.asked) - len({*site.model.asked})
    assert repeated == (0 if store_url != "memory://" else EPISODES * away_at)
    if kind is PileEnvironment:
        sessions = len(await served.services.store.heads(limit=100))
        assert sessions == (EPISODES if store_url != "memory://" else 2 * EPISODES)
        names = [row["_stateroom_session"] for row in rows(site.files.rollouts)]
        assert {*names} <= {head.id for head in await served.services.store.heads(limit=100)}
    assert await site.is_as_here()


async def test_no_tool_runs_twice_in_a_session_that_goes_on(serve: Any, tmp_path: Path) -> None:
    environment = PileEnvironment()
    served = await serve(environment)
    site = Site(tmp_path, PileEnvironment(), f"sqlite:///{tmp_path / 'diaries.db'}")
    for away_at in (1, 2, 3):
        site.model.away_at = away_at
        assert (await site.run(served.url, resume=away_at > 1)).failed == EPISODES
    site.model.away_at = None
    assert (await site.run(served.url, resume=True)).failed == 0
    assert len(environment.put) == len({*environment.put}) == 3 * EPISODES


async def test_a_verdict_that_was_given_before_is_given_again(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = PileEnvironment()
    served = await serve(environment)
    kept = served.services.store
    site = Site(tmp_path, PileEnvironment(), f"sqlite:///{tmp_path / 'diaries.db'}")

    class Killed(BaseException):
        """The process ends."""

    def die(appender: Appender, line: bytes) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "write", die)
        with pytest.raises(Killed):
            await site.run(served.url)
    kinds = [entry.kind for head in await kept.heads(limit=100) for entry in await kept.entries(head.id)]
    assert "verdict" in kinds
    assert "close" not in kinds
    assert rows(site.files.rollouts) == []
    assert (await site.run(served.url, resume=True)).failed == 0
    assert len(site.model.asked) == len({*site.model.asked})
    assert len(environment.put) == 3 * EPISODES
    assert await site.is_as_here()


async def test_a_session_that_the_server_has_lost_starts_over(serve: Any, tmp_path: Path) -> None:
    site = Site(tmp_path, PileEnvironment(), f"sqlite:///{tmp_path / 'diaries.db'}")
    site.model.away_at = 2
    assert (await site.run((await serve(PileEnvironment())).url)).failed == EPISODES
    site.model.away_at = None
    assert (await site.run((await serve(PileEnvironment())).url, resume=True)).failed == 0
    assert await site.is_as_here()
    async with open_store(site.store) as diaries:
        assert len(await diaries.heads(limit=100)) == EPISODES
