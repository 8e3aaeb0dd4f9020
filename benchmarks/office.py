"""The office: what it costs to call, fork, seed and judge at 10,460 records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import count, cycle
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.environments import increment, seed_counter
from benchmarks.timing import Figure, elapsed, interleaved, micro, repeated, slowdown
from stateroom import Environment, Sessions, open_store
from stateroom.gallery import OfficeEnvironment
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.world import base_world, make_world
from stateroom.rollout import RunFiles, example_file, plan_run, read_tasks, rescore_rollouts, run
from stateroom.session import Session

TASK: dict[str, Any] = {"kind": "set_priority", "difficulty": 1, "gold": []}

WRITES: dict[str, Any] = {
    "set_priority": cycle([{"ticket_id": f"T-{n:04}", "priority": p} for n in (11, 2499) for p in ("low", "urgent")]),
    "assign_ticket": cycle([{"ticket_id": "T-0011", "assignee_id": f"C-{number:04}"} for number in range(1, 30)]),
    "label_mail": ({"mail_id": f"M-{1 + n % 3000:04}", "label": f"l{n}"} for n in count()),
    "move_event": cycle([{"event_id": "EV-0009", "start": f"2026-03-04T{hour}:00"} for hour in range(10, 16)]),
    "draft_mail": ({"to": ["a@b.example"], "subject": f"{n}", "body": "text"} for n in count()),
}
"""Write tools, each with arguments without end."""

GROUP = 8


class OwnOffice(Environment[Office]):
    """The office as it would be without a world: each session is given, and stores, a state of its own."""

    name = "own_office"

    def __init__(self, make: Callable[[], Office]) -> None:
        self.make = make

    def seed(self) -> Office:
        return self.make()

    def verify(self) -> float:
        return 0.0


async def bars() -> list[Figure]:
    """The office at 10,460 records (3.3 MB): writes, and the start of a group of 8 episodes.

    Writes are compared with a call of the counter, which has a state of one number. A group is one seed and eight
    forks; it is compared with eight seeds that each copy or make an office of their own. A seed shares the office too,
    so eight seeds cost little more than a group.
    """
    async with open_store("memory://") as store:
        session = await Sessions(OfficeEnvironment(), store).seed(TASK)
        counter = await seed_counter(store)
        writing = [await _write(name, session, counter) for name in WRITES]
    with tempfile.TemporaryDirectory() as folder:
        starting = [await _group(url) for url in ("memory://", f"sqlite:///{Path(folder) / 'rooms.db'}")]
    return [*writing, *(figure for figures in starting for figure in figures)]


async def _write(name: str, session: Session[Any], counter: Session[Any]) -> Figure:
    async def write() -> float:
        return await repeated(lambda: _done(session, name), 300)

    async def count_up() -> float:
        return await repeated(lambda: increment(counter), 300)

    ours, theirs = await interleaved(write, count_up)
    return slowdown(f"office: {name} against a call of the counter", ours, theirs, 3)


async def _done(session: Session[Any], name: str) -> None:
    result = await session.call(name, next(WRITES[name]))
    assert result.ok, result.error


async def _group(url: str) -> list[Figure]:
    async with open_store(url) as store:
        sessions = Sessions(OfficeEnvironment(), store)
        await sessions.seed(TASK)  # the world is made, and stored
        whole = base_world()
        copying = Sessions(OwnOffice(lambda: whole), store)
        making = Sessions(OwnOffice(lambda: make_world(Random("office"))), store)

        async def group() -> float:
            return await elapsed(_start_group(sessions))

        async def with_copies() -> float:
            return await repeated(lambda: copying.seed({}), GROUP) * GROUP

        async def with_own() -> float:
            return await repeated(lambda: making.seed({}), GROUP) * GROUP

        async def shared() -> float:
            return await repeated(lambda: sessions.seed(TASK), 100)

        starting, copied = await interleaved(group, with_copies, 5)
        made = median([await with_own() for _ in range(2)])
        seeding = median([await shared() for _ in range(5)])
    kind = url.partition(":")[0]
    milli = f"{starting * 1e3:.2f} ms"
    return [
        Figure(
            f"office, {kind}: 8 seeds with a copy of the world each, against a group of 8",
            copied / starting, 50, "at least", f"{copied * 1e3:,.0f} ms / {milli}",
        ),
        Figure(
            f"office, {kind}: 8 seeds that make a world each, against a group of 8",
            made / starting, 50, "at least", f"{made * 1e3:,.0f} ms / {milli}",
        ),
        Figure(f"office, {kind}: ms to seed a session", seeding * 1e3, 50, "at most", micro(seeding)),
    ]  # fmt: skip


async def _start_group(sessions: Sessions[Any]) -> None:
    """One seed, and eight forks of it."""
    session = await sessions.seed(TASK)
    await session.fork(n=GROUP)


async def shown() -> Table:
    """The office at 10,460 records, against the simple way.

    The simple way keeps an old state by a `deepcopy` of it, and judges episodes again by running them with the
    reference policy.
    """
    table = Table("office, 10,460 records", "here", "instead", "ratio", pad_edge=False)
    async with open_store("memory://") as store:
        sessions = Sessions(OfficeEnvironment(), store)
        session = await sessions.seed(TASK)

        async def call() -> float:
            return await repeated(lambda: _done(session, "set_priority"), 200)

        async def fork() -> float:
            return await repeated(session.fork, 50)

        async def copy() -> float:
            start = time.perf_counter()
            deepcopy(base_world())
            return time.perf_counter() - start

        for what, ours in (("a write, against a deepcopy before it", call), ("a fork, against a deepcopy", fork)):
            mine, theirs = await interleaved(ours, copy, 3)
            _compare(table, what, mine, theirs)
    _compare(table, "new verdicts on 200 episodes, against running them", *await _rejudged())
    return table


def _compare(table: Table, what: str, here: float, instead: float) -> None:
    table.add_row(what, _readable(here), _readable(instead), f"{instead / here:,.1f}")


def _readable(seconds: float) -> str:
    if seconds < 1e-3:
        return micro(seconds)
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


async def _rejudged() -> tuple[float, float]:
    """The seconds to judge 200 stored episodes again, and those to run them, on SQLite."""
    examples = example_file(OfficeEnvironment)
    assert examples is not None
    tasks = read_tasks(examples, OfficeEnvironment())[:200]
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_run(OfficeEnvironment, model="reference", input=tasks, output=Path(folder) / "run.jsonl")
        running = await elapsed(run(plan))
        async with open_store(plan.store) as store:
            again = RunFiles(Path(folder) / "again.jsonl")
            judging = await elapsed(rescore_rollouts(OfficeEnvironment(), plan.files.rollouts, again, store))
    return judging, running
