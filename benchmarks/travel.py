"""What it costs to go back: forks and rewinds of a long session with a large state, and looking at any revision."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.history import ArchiveEnvironment, fresh_stores
from benchmarks.timing import Figure, interleaved, micro
from stateroom import Session, Sessions, open_store
from stateroom.store import Store

RECORDS, ENTRIES = 10_000, 10_000
TIMES = 20
"""So many forks, or rewinds, are timed together."""


async def travel() -> list[Figure]:
    """To a random revision of a session with 10 MB and 10,000 entries, against the last one of an empty session."""
    async with fresh_stores() as others, open_store("memory://") as memory:
        del others["S3"]  # the server of the tests takes minutes for 10,000 calls; files are the same code
        figures = await _measured("memory", memory, 1.5)
        for name, store in others.items():
            figures += await _measured(name, store, 2.0)
        return figures


async def _measured(name: str, store: Store, bar: float) -> list[Figure]:
    sessions = Sessions[Any](ArchiveEnvironment(), store)
    large, empty = await sessions.seed({"records": RECORDS}), await sessions.seed({"records": 1})
    for number in range(ENTRIES):
        await large.call("renumber", {"index": number % RECORDS})
    await empty.call("renumber", {"index": 0})
    rng = random.Random(1)
    figures = [await _looking(name, store, large.id, rng)]

    async def fork(session: Session[Any], at: int) -> None:
        await session.fork(at=at)

    async def rewind(session: Session[Any], to: int) -> None:
        await session.rewind(to)

    for what, go in (("fork", fork), ("rewind", rewind)):
        near, far = await interleaved(
            _timed(go, empty, lambda: empty.revision), _timed(go, large, lambda: rng.randint(1, ENTRIES)), 9
        )
        told = f"a {what} of 10 MB and 10,000 entries against an empty one, {name}"
        figures.append(Figure(told, far / near, bar, "at most", f"{micro(far)} / {micro(near)}"))
    return figures


def _timed(
    go: Callable[[Session[Any], int], Awaitable[None]], session: Session[Any], where: Callable[[], int]
) -> Callable[[], Awaitable[float]]:
    async def some() -> float:
        start = time.perf_counter()
        for _ in range(TIMES):
            await go(session, where())
        return (time.perf_counter() - start) / TIMES

    return some


async def _looking(name: str, store: Store, session: str, rng: random.Random) -> Figure:
    """A random revision against the newest, both read from the store."""

    async def newest() -> float:
        elsewhere = Sessions[Any](ArchiveEnvironment(), store)
        start = time.perf_counter()
        await elsewhere.open(session)
        return time.perf_counter() - start

    async def any_one() -> float:
        opened = await Sessions[Any](ArchiveEnvironment(), store).open(session)
        revision = rng.randint(1, ENTRIES)
        start = time.perf_counter()
        await opened.state_at(revision)
        return time.perf_counter() - start

    near, far = await interleaved(newest, any_one, 9)
    what = f"the state at any revision against the newest, {name}"
    return Figure(what, far / near, 3, "at most", f"{1000 * far:.1f} ms / {1000 * near:.1f} ms")
