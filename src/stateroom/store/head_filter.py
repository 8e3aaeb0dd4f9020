"""Filters and orders for lists of sessions."""

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
"""Newest first, oldest first, or highest reward first; the last one lists only sessions with a verdict.

Sessions of the same age are ordered by id, so a list can continue after any head.
"""


class HeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects sessions for a list. Omitted fields match all sessions."""

    environment: str | None = None
    owner: str | None = None
    status: Status | None = None
    at: float = 0.0
    """The time for which to determine the status."""
    phase: str | None = None
    prefix: str = ""
    """The beginning of the id."""
    min_reward: float | None = None
    """If you set this or `max_reward`, only sessions with a verdict match."""
    max_reward: float | None = None

    def matches(self, head: Head) -> bool:
        """Whether the filter matches a session."""
        return (
            all(getattr(self, name) in (None, getattr(head, name)) for name in EQUAL)
            and (self.status is None or self.status == head.status(self.at))
            and head.id.startswith(self.prefix)
            and (self.min_reward is None or (head.reward is not None and head.reward >= self.min_reward))
            and (self.max_reward is None or (head.reward is not None and head.reward <= self.max_reward))
        )


ALL_SESSIONS = HeadFilter()
"""The filter that matches all sessions."""

EQUAL = ("environment", "owner", "phase")
"""The fields that a filter compares with those of a head."""


def place_of(head: Head, order: Order) -> tuple[Any, ...]:
    """The sort key of a head: it falls along a list, except in the order `oldest`."""
    return (head.reward, *head.age) if order == "reward" else head.age


def page_of(heads: Iterable[Head], order: Order, after: Head | None, limit: int) -> list[Head]:
    """Return a page of a list: its first heads, or those after a head."""
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
    """Return a page of a list, for a store that can only list its heads from the newest.

    `newest` takes an environment or None, the head to continue after or None, and a limit. It is called until the page
    is full; for another order, until all heads are read.
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
