"""Cost follows the change, not the size: updates, forks and rewinds on a small and on a large state."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from pydantic import BaseModel

from benchmarks.timing import Figure, Timed, interleaved, repeated, slowdown
from stateroom import Environment, Session, Sessions, State, open_store, tool
from stateroom.state import DraftContext, commit, draft_of

SMALL, LARGE = 10, 10_000


class Record(BaseModel):
    id: str
    title: str
    body: str
    tags: list[str]
    score: int = 0


class Listed(State):
    records: list[Record]


class Keyed(State):
    records: dict[str, Record]


def records(number: int) -> list[Record]:
    """Records of 1.1 kB of JSON each."""
    return [Record(id=f"r{i}", title=f"Record {i}", body="x" * 1000, tags=["a", "b", "c"]) for i in range(number)]


class ListEnvironment(Environment[Listed]):
    """Records in a list."""

    def seed(self, task: Any) -> Listed:
        return Listed(records=records(task.number))

    @tool
    def set_score(self, state: Listed, index: int, score: int) -> dict[str, bool]:
        """Change one field of one record."""
        state.records[index].score = score
        return {"success": True}

    def verify(self, state: Listed) -> float:
        return 0.0


class DictEnvironment(Environment[Keyed]):
    """Records in a dict."""

    def seed(self, task: Any) -> Keyed:
        return Keyed(records={record.id: record for record in records(task.number)})

    @tool
    def set_score(self, state: Keyed, index: int, score: int) -> dict[str, bool]:
        """Change one field of one record."""
        state.records[f"r{index}"].score = score
        return {"success": True}

    def verify(self, state: Keyed) -> float:
        return 0.0


async def updates() -> list[Figure]:
    """A one-field update of 10,000 records, against one of 10 records.

    Memory store, one session, no other users. The next call after a fork, a read or a tool that kept the previous
    state makes one shallow copy of the wide container; only then does the cost depend on its width.
    """
    figures = []
    for environment in (ListEnvironment(), DictEnvironment()):
        async with open_store("memory://") as store:
            sessions = Sessions[Any](environment, store)
            small, large = [await _updating(sessions, number) for number in (SMALL, LARGE)]
            fast, slow = await interleaved(small, large)
        what = f"one-field update, {LARGE:,} against {SMALL} records, {environment.name}"
        figures.append(slowdown(what, slow, fast, 3))
    return figures


async def _updating(sessions: Sessions[Any], number: int) -> Timed:
    session = await sessions.seed({"number": number})
    turn = 0

    async def update() -> None:
        nonlocal turn
        turn += 1
        await session.call("set_score", {"index": turn * 7 % number, "score": turn})

    await repeated(update, 50)  # past the tool's first runs on a thread
    return lambda: repeated(update, 200)


class Numbered(State):
    numbers: list[int]


FEW, MANY = 2_000, 20_000


async def edits() -> list[Figure]:
    """Many edits of one list in one call, committed.

    The first line compares with the same edits of a plain Python list. The second compares one large list with ten
    small ones: a ratio of 1 means that the cost per item does not grow.
    """
    plain, drafted = await interleaved(_plain(_append_and_sort), _drafted(_append_and_sort, MANY), rounds=3)
    what = f"300 times append and sort, {MANY:,} items, against a plain list"
    figures = [slowdown(what, drafted, plain, 5)]
    times = MANY // FEW
    small, large = await interleaved(_drafted(_delete_every_other, FEW, times), _drafted(_delete_every_other, MANY))
    what = f"delete every other item, {MANY:,} against {times} times {FEW:,}"
    return [*figures, slowdown(what, large, small, 3)]


def _append_and_sort(numbers: list[int]) -> None:
    for number in range(300):
        numbers.append(number * 7_919 % MANY)
        numbers.sort()


def _delete_every_other(numbers: list[int]) -> None:
    del numbers[::2]


def _plain(program: Callable[[list[int]], None]) -> Timed:
    async def timed() -> float:
        numbers = list(range(MANY))
        start = time.perf_counter()
        program(numbers)
        return time.perf_counter() - start

    return timed


def _drafted(program: Callable[[list[int]], None], size: int, times: int = 1) -> Timed:
    async def timed() -> float:
        drafts = [draft_of(Numbered(numbers=list(range(size))), DraftContext()) for _ in range(times)]
        start = time.perf_counter()
        for draft in drafts:
            program(draft.numbers)
            commit(draft)
        return time.perf_counter() - start

    return timed


class Stamp(BaseModel, frozen=True):
    worth: int


class Letter(BaseModel, frozen=True):
    score: int
    stamps: tuple[Stamp, ...] = (Stamp(worth=1),)


class Frozen(State):
    flat: dict[int, Stamp]
    nested: dict[int, Letter]


async def reads() -> list[Figure]:
    """A search through frozen records, nested ones against flat ones.

    Both are read through a draft, as a tool reads them.
    """
    state = Frozen(flat={i: Stamp(worth=i) for i in range(500)}, nested={i: Letter(score=i) for i in range(500)})
    flat, nested = await interleaved(
        _searching(lambda: sum(each.worth for each in draft_of(state, DraftContext()).flat.values())),
        _searching(lambda: sum(each.score for each in draft_of(state, DraftContext()).nested.values())),
    )
    what = "read 500 frozen records, nested against flat"
    return [slowdown(what, nested, flat, 2)]


def _searching(search: Callable[[], int], times: int = 50) -> Timed:
    async def timed() -> float:
        start = time.perf_counter()
        for _ in range(times):
            search()
        return (time.perf_counter() - start) / times

    return timed


async def forks_and_rewinds() -> list[Figure]:
    """A fork of the newest state, and a rewind to the state before it, at 10,000 records against 10.

    Memory store. The states of the last eight revisions are in memory, so nothing is loaded; `travel` goes further
    back.
    """
    async with open_store("memory://") as store:
        sessions = Sessions[Any](ListEnvironment(), store)
        small, large = [await sessions.seed({"number": number}) for number in (SMALL, LARGE)]
        figures = []
        for name, timed in (("fork", _forking), ("rewind", _rewinding)):
            fast, slow = await interleaved(timed(small), timed(large))
            what = f"{name}, {LARGE:,} against {SMALL} records"
            figures.append(slowdown(what, slow, fast, 1.5))
    return figures


def _forking(session: Session[Any]) -> Timed:
    return _timing(session, session.fork, in_a_row=8)


def _rewinding(session: Session[Any]) -> Timed:
    return _timing(session, lambda: session.rewind(to=session.revision - 1))


def _timing(session: Session[Any], action: Callable[[], Any], in_a_row: int = 1, times: int = 60) -> Timed:
    """Times an action, done so many times in a row after an update that is not timed, again and again."""

    async def timed() -> float:
        seconds = []
        for turn in range(times):
            await session.call("set_score", {"index": turn % SMALL, "score": turn})
            start = time.perf_counter()
            for _ in range(in_a_row):
                await action()
            seconds.append((time.perf_counter() - start) / in_a_row)
        return median(seconds)

    return timed
