"""Runs whose process is killed, again and again, and that go on: as if nothing had happened, and nothing done twice."""

import asyncio
import json
import os
import random
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

import pytest

from stateroom.environment import load_class
from stateroom.errors import UnknownSession
from stateroom.model import open_model
from stateroom.rollout import RunFiles, run
from stateroom.session import read_entry
from stateroom.store import open_store
from tests.examples import share
from tests.plans import make_run
from tests.rows import comparable, rows

pytestmark = pytest.mark.more("time")

ERRANDS = Path(__file__).with_name("errands.py")
COMMAND = (sys.executable, "-c", "from stateroom.cli import main; main()", "run", f"{ERRANDS}:ErrandEnvironment")


class Recorded(NamedTuple):
    """What a store knows of a session: how many answers, and the calls and replies whose outcome is on record."""

    answers: int
    calls: set[str]
    replies: int
    judged: bool


async def recorded(url: str, sessions: list[str]) -> dict[str, Recorded]:
    """What a store knows of those sessions that are in it."""
    found: dict[str, Recorded] = {}
    async with open_store(url) as store:
        for session in sessions:
            try:
                entries = [read_entry(entry) for entry in await store.entries(session)]
            except UnknownSession:
                continue
            said = [entry for entry in entries if entry.kind == "message"]
            items = [item for entry in said for item in entry.facts["items"]]
            calls = [entry for entry in entries if entry.kind == "call"]
            found[session] = Recorded(
                sum(entry.facts["by"] == "model" for entry in said),
                {item["call_id"] for item in items if item["type"] == "function_call_output"}
                | {entry.input["ref"] for entry in calls if entry.name != "reply"},
                sum(entry.name == "reply" for entry in calls),
                any(entry.kind == "verdict" for entry in entries),
            )
    return found


class Lives:
    """The processes that work on one run, one after the other."""

    def __init__(self, folder: Path, store: str, *options: Any) -> None:
        self.files = RunFiles(folder / "killed.jsonl")
        self.store = store
        self.trace = folder / "trace"
        self.known: list[dict[str, Recorded]] = []
        """What was on record when each of them began."""
        self._command = (*COMMAND, "--model", f"{ERRANDS}:Runner", *map(str, options))
        self._tasks = folder / "tasks.jsonl"
        self.tasks([{"purse": 0}])

    def tasks(self, tasks: list[dict[str, Any]]) -> None:
        self._tasks.write_text("".join(json.dumps(task) + "\n" for task in tasks))

    @property
    def sessions(self) -> list[str]:
        return [row["_stateroom_session"] for row in rows(self.files.inputs)]

    async def live(self, die: str = "") -> int:
        """Let another one work on it, until it is done or dies; gives the code that it ended with."""
        self.known.append(await recorded(self.store, self.sessions))
        work = ["--resume"] if self.files.inputs.exists() else ["--input", self._tasks]
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *map(str, (*work, "--output", self.files.rollouts, "--store", self.store)),
            env=os.environ | self._environ(die),
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0 or (die and process.returncode == -SIGKILL), (out + err).decode()
        return process.returncode

    def _environ(self, die: str) -> dict[str, str]:
        life = str(len(self.known) - 1)
        return {"ERRANDS_TRACE": str(self.trace), "ERRANDS_LIFE": life, "ERRANDS_DIE": die}

    def traces(self) -> list[list[dict[str, Any]]]:
        """What each of them did."""
        found: list[Any] = [[] for _ in self.known]
        for line in self.trace.read_text().splitlines():
            life, what, who, *more = line.split()
            found[int(life)].append((what, who, *more))
        return found

    def refuse_repetition(self) -> None:
        """Nothing was done that was on record, and nothing twice in one life."""
        session_of = {
            str(int(row["response"]["id"].removeprefix("resp_"), 16)): row["_stateroom_session"]
            for row in rows(self.files.rollouts)
        }
        for known, done in zip(self.known, self.traces(), strict=True):
            assert [each for each, times in Counter(done).items() if times > 1] == []
            for what, who, *more in done:
                before = known.get(session_of[who] if what == "asked" else who, Recorded(0, set(), 0, False))
                match what:
                    case "asked":
                        assert int(more[0]) >= before.answers
                    case "tool":
                        assert more[0] not in before.calls
                    case "reply":
                        assert int(more[0]) >= before.replies
                    case "verify":
                        assert not before.judged


async def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: Any, **more: Any) -> RunFiles:
    """The files of the same run in one piece."""
    monkeypatch.setenv("ERRANDS_TRACE", str(folder / "undisturbed"))
    monkeypatch.setenv("ERRANDS_LIFE", "0")
    files = RunFiles(folder / "whole.jsonl")
    environment = load_class(f"{ERRANDS}:ErrandEnvironment")()
    model = open_model(f"{ERRANDS}:Runner", {})
    report = await run(make_run(environment=environment, model=model, tasks=tasks, files=files, **more))
    assert report.failed == 0
    return files


def tear(path: Path) -> None:
    """Leave the half of a row at the end of a file, as a process that dies while it writes one."""
    with path.open("ab") as file:
        file.write(b'{"purse": 0, "_ng_task_index": 1, "_ng_rol')


def same(lives: Lives, whole: RunFiles) -> bool:
    """Whether a run has come to what one in one piece comes to."""
    figures, wanted = (json.loads(files.metrics.read_text())[0] for files in (lives.files, whole))
    return (
        comparable(lives.files.rollouts) == comparable(whole.rollouts)
        and not lives.files.failures.exists()
        and bool(figures["agent_metrics"] == pytest.approx(wanted["agent_metrics"]))
    )


@pytest.mark.parametrize(
    ("kind", "episodes", "deaths"),
    [("sqlite", share(1.5), share(0.15)), ("redis", 24, 2), ("postgresql", 24, 2), ("file", 24, 2)],
)
async def test_a_run_that_is_killed_again_and_again_comes_to_the_same(
    kind: str,
    episodes: int,
    deaths: int,
    fresh_url: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = [{"purse": number} for number in range(episodes // 2)]
    whole = await undisturbed(tmp_path, monkeypatch, tasks, repeats=2, seed=7, max_steps=6)
    traces = len((tmp_path / "undisturbed").read_text().splitlines())
    luck = random.Random(kind)
    lives = Lives(tmp_path, fresh_url(kind), "--repeats", 2, "--seed", 7, "--max-steps", 6)
    lives.tasks(tasks)
    killed = 0
    while killed < deaths:
        died = await lives.live(die=str(luck.randrange(1, 2 * traces // (deaths + 1))))
        if died == 0:
            break  # it was quicker
        killed += 1
        tear(lives.files.rollouts)
    assert killed >= deaths / 2
    assert await lives.live() == 0
    assert same(lives, whole)
    lives.refuse_repetition()


@pytest.mark.parametrize("place", ["verify", "row", "torn row"])
async def test_a_run_that_is_killed_at_the_end_of_an_episode_comes_to_the_same(
    place: str, fresh_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await undisturbed(tmp_path, monkeypatch, [{"purse": 0}], repeats=5, max_steps=6)
    lives = Lives(tmp_path, fresh_url("sqlite"), "--repeats", 5, "--max-steps", 6, "--concurrency", 2)
    assert await lives.live(die=place) == -SIGKILL
    assert await lives.live() == 0
    assert same(lives, whole)
    lives.refuse_repetition()
    assert any(known.judged for known in lives.known[1].values()) == (place != "verify")


async def test_groups_that_are_killed_come_to_the_same(
    fresh_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [{"purse": number} for number in range(4)]
    whole = await undisturbed(tmp_path, monkeypatch, tasks, group=4, max_steps=6)
    lives = Lives(tmp_path, fresh_url("sqlite"), "--group", 4, "--max-steps", 6)
    lives.tasks(tasks)
    for traces in (3, 50, 90):
        assert await lives.live(die=str(traces)) == -SIGKILL
    assert await lives.live() == 0
    assert same(lives, whole)
    lives.refuse_repetition()
    inputs, done = rows(lives.files.inputs), rows(lives.files.rollouts)
    for name in ("_stateroom_session", "_stateroom_parent"):  # each member went on in its own fork
        assert [row[name] for row in done] == [row[name] for row in inputs]
    async with open_store(lives.store) as store:
        assert len(await store.heads(limit=100)) == 4 + 16
