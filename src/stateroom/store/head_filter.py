"""Lists of sessions: which heads a list has, in which order, and the same as SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from operator import gt, lt
from typing import Any, Literal, TypeVar

import msgspec

from stateroom.store.records import Head, Status

T = TypeVar("T")

Order = Literal["newest", "oldest", "reward"]
"""The newest first, the oldest first, or the highest reward first; the last is a list of sessions with a verdict."""


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
            self.environment in (None, head.environment)
            and self.owner in (None, head.owner)
            and (self.status is None or self.status == head.status(self.at))
            and self.phase in (None, head.phase)
            and head.id.startswith(self.prefix)
            and (self.min_reward is None or (head.reward is not None and head.reward >= self.min_reward))
            and (self.max_reward is None or (head.reward is not None and head.reward <= self.max_reward))
        )


ALL = HeadFilter()


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


# As SQL, for stores with a table of sessions whose columns are named as the fields of a head.

_STATUSES = {"live": "NOT closed AND expires > ?", "expired": "NOT closed AND expires <= ?", "closed": "closed"}


def select_heads(
    wanted: HeadFilter, order: Order, last: Sequence[T], value: Callable[[str | float], T], beyond: str
) -> tuple[str, list[T]]:
    """The clauses `WHERE … ORDER BY …` of a list, and the values for the `?` in them.

    `last` are the values of the place that it goes on after, if any. `value` is how a text or a number is given to the
    database, and `beyond` a literal that comes after every character.
    """
    conditions: list[str] = ["reward IS NOT NULL"] if order == "reward" else []
    values: list[T] = []
    for condition, given in (
        ("environment = ?", wanted.environment),
        ("owner = ?", wanted.owner),
        ("phase = ?", wanted.phase),
        ("reward >= ?", wanted.min_reward),
        ("reward <= ?", wanted.max_reward),
    ):
        if given is not None:
            conditions.append(condition)
            values.append(value(given))
    if wanted.status is not None:
        conditions.append(_STATUSES[wanted.status])
        values += [value(wanted.at)] * (wanted.status != "closed")
    if wanted.prefix:
        conditions.append(f"id >= ? AND id < (? || {beyond})")
        values += [value(wanted.prefix)] * 2
    columns = ["reward", "created", "id"] if order == "reward" else ["created", "id"]
    if last:
        marks = ", ".join("?" * len(columns))
        conditions.append(f"({', '.join(columns)}) {'>' if order == 'oldest' else '<'} ({marks})")
        values += last
    direction = "ASC" if order == "oldest" else "DESC"
    ordered = ", ".join(f"{column} {direction}" for column in columns)
    return f"WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY {ordered}", values
