"""Iterating over all sessions of a store, and measuring them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from heapq import nlargest
from typing import NamedTuple, TypeVar

from stateroom.errors import BadData, UnknownSession
from stateroom.store import Head, Size, Status, Store

T = TypeVar("T")
Item = TypeVar("Item")

logger = logging.getLogger(__name__)

MAX_UNDER_WAY = 8
"""How many sessions are worked on at a time: each of them may be held in memory whole."""


async def each_session(store: Store, work: Callable[[Head], Awaitable[T]]) -> AsyncIterator[tuple[Head, T]]:
    """Iterate over all sessions, newest first, with the result of `work` for each.

    Sessions that are removed meanwhile are skipped; so are damaged ones, with a warning in the log.
    """

    async def unless_removed(head: Head) -> list[T]:
        try:
            return [await work(head)]
        except UnknownSession as error:
            if error.session == head.id:
                return []
            raise
        except BadData as error:
            logger.warning("session %r is skipped: %s", head.id, error)
            return []

    async for page in store.pages():
        async for head, results in side_by_side(page, unless_removed):
            for result in results:
                yield head, result


async def side_by_side(items: Iterable[Item], work: Callable[[Item], Awaitable[T]]) -> AsyncIterator[tuple[Item, T]]:
    """Iterate over items, in order, with the result of `work` for each; the next few run meanwhile."""

    async def at_work(item: Item) -> T:
        return await work(item)

    under_way: deque[tuple[Item, asyncio.Task[T]]] = deque()
    try:
        for item in items:
            under_way.append((item, asyncio.create_task(at_work(item))))
            if len(under_way) == MAX_UNDER_WAY:
                first, task = under_way.popleft()
                yield first, await task
        while under_way:
            first, task = under_way.popleft()
            yield first, await task
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)  # nothing goes on unseen


async def descendants(store: Store, session: str) -> AsyncIterator[Head]:
    """The heads of the sessions that were forked from this one, of those forked from them, and so on."""
    seen = {session}
    todo = [session]
    while todo:
        try:
            forks = await store.children(todo.pop())
        except UnknownSession:  # it was removed meanwhile, so it had none
            continue
        for fork in forks:
            if fork.id not in seen:  # of two that say they were forked from each other, too
                seen.add(fork.id)
                todo.append(fork.id)
                yield fork


class Statistics(NamedTuple):
    """The contents of a store."""

    sizes: dict[str, Size]
    """The sizes of all data, by kind."""
    sessions: dict[str, Counter[Status]]
    """The number of sessions, by environment and status."""
    largest: list[tuple[Head, Size]]
    """The largest sessions by their own data, largest first."""


async def count_sessions(store: Store, *, now: float, top: int, done: Callable[[], None]) -> Statistics:
    """Count a store's contents, and find its largest sessions; `done` is called for each session."""
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
