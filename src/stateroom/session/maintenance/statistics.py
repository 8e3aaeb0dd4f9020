"""How much there is in a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import nlargest
from typing import NamedTuple

from stateroom.session.maintenance.heads import each_session
from stateroom.store import Head, Size, Status, Store


class Statistics(NamedTuple):
    """What a store has."""

    sizes: dict[str, Size]
    """All of it, by kind."""
    sessions: dict[str, Counter[Status]]
    """How many sessions there are, by environment and status."""
    largest: list[tuple[Head, Size]]
    """The sessions that are the largest by what is their own, the largest first."""


async def count(store: Store, *, now: float, top: int, done: Callable[[], None]) -> Statistics:
    """Count what is in a store, and its largest sessions; `done` is called for each session."""
    sessions: dict[str, Counter[Status]] = defaultdict(Counter)
    largest: list[tuple[Head, Size]] = []

    async def measure(head: Head) -> Size:
        return await store.size(head.id) if top else Size(0, 0)

    async for head, size in each_session(store, measure):
        sessions[head.environment][head.status(now)] += 1
        largest.append((head, size))
        if len(largest) > 2 * top:
            largest = _largest(top, largest)
        done()
    return Statistics(await store.maintenance.sizes(), dict(sessions), _largest(top, largest))


def _largest(top: int, sessions: list[tuple[Head, Size]]) -> list[tuple[Head, Size]]:
    return nlargest(top, sessions, key=lambda session: session[1].bytes)
