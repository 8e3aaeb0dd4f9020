"""Lists of sessions: which heads a list has, and in which order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from heapq import nlargest, nsmallest
from operator import gt, lt
from typing import Any, Literal

import msgspec

from stateroom.store.records import Head, Status

HEADS_PER_PAGE = 200
"""Heads that are read at a time when many are listed."""

Order = Literal["newest", "oldest", "reward"]
"""The newest first, the oldest first, or the highest reward first; the last is a list of sessions with a verdict.

What is of one age is in the order of its ids, so that a list can go on after any head.
"""


class HeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a list has. A field that is not given lets all through."""

    environment: str | None = None
    owner: str | None = None
    status: Status | None = None
    at: float = 0.0
    """The time of the status."""
    phase: str | None = None
    prefix: str = ""
    """How the id begins."""
    min_reward: float | None = None
    """With one of these two, a list has only sessions with a verdict."""
    max_reward: float | None = None

    def matches(self, head: Head) -> bool:
        """Whether a list has this session."""
        return (
            all(getattr(self, name) in (None, getattr(head, name)) for name in EQUAL)
            and (self.status is None or self.status == head.status(self.at))
            and head.id.startswith(self.prefix)
            and (self.min_reward is None or (head.reward is not None and head.reward >= self.min_reward))
            and (self.max_reward is None or (head.reward is not None and head.reward <= self.max_reward))
        )


ALL_SESSIONS = HeadFilter()
"""The filter of a list that has all sessions."""

EQUAL = ("environment", "owner", "phase")
"""The fields of a filter that a head has too, with the same value."""


def place_of(head: Head, order: Order) -> tuple[Any, ...]:
    """The place of a head in a list: what follows it in this order has a lower one, or a higher one from the oldest."""
    return (head.reward, *head.age) if order == "reward" else head.age


def page_of(heads: Iterable[Head], order: Order, after: Head | None, limit: int) -> list[Head]:
    """The first heads of a list, or the first after one of them."""
    place = partial(place_of, order=order)
    if order == "reward":
        heads = (head for head in heads if head.reward is not None)
    if after is not None:
        last, follows = place(after), gt if order == "oldest" else lt
        heads = (head for head in heads if follows(place(head), last))
    return (nsmallest if order == "oldest" else nlargest)(limit, heads, key=place)


async def filter_newest(
    newest: Callable[[str | None, Head | None, int], Awaitable[list[Head]]],
    wanted: HeadFilter,
    order: Order,
    after: Head | None,
    limit: int,
) -> list[Head]:
    """A list, for a store that can only go through its heads from the newest.

    `newest` gives those of an environment, or all, after one of them, or from the first, and a limit. This asks until
    the page is full, and for another order it reads all of them.
    """
    environment, in_order = wanted.environment, order == "newest"
    size = limit if in_order and wanted == HeadFilter(environment=environment) else max(limit, HEADS_PER_PAGE)
    heads: list[Head] = []
    page = await newest(environment, after if in_order else None, size)
    while page:
        heads += filter(wanted.matches, page)
        if in_order and len(heads) >= limit:
            break
        page = await newest(environment, page[-1], size)
    return page_of(heads, order, after, limit)
