"""What it costs to go back: forks and rewinds of a long session with a large state, and looking at any revision."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.environments import ArchiveEnvironment
from benchmarks.stores import fresh_stores
from benchmarks.timing import Figure, Timed, elapsed, interleaved, repeated, slowdown
from stateroom import Session, Sessions, open_store
from stateroom.store import Store

RECORDS, ENTRIES = 10_000, 10_000
TIMES = 20
"""So many forks, or rewinds, are timed together."""


async def travel() -> list[Figure]:
    """Reading, forking and rewinding to any revision of a session with 10 MB and 10,000 entries.

    Reads compare a random revision with the newest, both read from the store. Forks and rewinds go to a random
    revision whose state is not read; they are compared with those of an empty session at its newest revision, where
    nothing has to be read. The S3 server of the tests is left out, since 10,000 calls take it minutes.
    """
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
        figures.append(slowdown(told, far, near, bar))
    return figures


def _timed(
    go: Callable[[Session[Any], int], Awaitable[None]], session: Session[Any], where: Callable[[], int]
) -> Timed:
    return lambda: repeated(lambda: go(session, where()), TIMES)


async def _looking(name: str, store: Store, session: str, rng: random.Random) -> Figure:
    """A random revision against the newest, both read from the store."""

    async def newest() -> float:
        return await elapsed(Sessions[Any](ArchiveEnvironment(), store).open(session))

    async def any_one() -> float:
        opened = await Sessions[Any](ArchiveEnvironment(), store).open(session)
        return await elapsed(opened.state_at(rng.randint(1, ENTRIES)))

    near, far = await interleaved(newest, any_one, 9)
    what = f"the state at any revision against the newest, {name}"
    return Figure(what, far / near, 3, "at most", f"{1000 * far:.1f} ms / {1000 * near:.1f} ms")
