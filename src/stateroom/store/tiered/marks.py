"""Marks: where a session is, as the heads in the two tiers say it.

A mark takes the place of the lease's holder in a head, with a lease that ends in the year 9999, so that no other holder
gets it. It remembers what it replaces: a session that was moved, or is being moved, looks as it did before.

| tier | mark | |
|---|---|---|
| warm | none | the session is here, whatever the cold tier says |
| warm | leaving | it is here, and cannot be changed until it is in the cold tier |
| warm | arriving | it is not here yet: the cold tier has it until it is open here |
| warm | buried | it was here; the cold tier has it. The next sweep of buried sessions removes the rest |
| cold | none | it is here, at rest, if the warm tier does not have it |
| cold | thawing | as with none, while it is moved to the warm tier |
| cold | away | it went to the warm tier; this is a copy of what it was then |
"""

from __future__ import annotations

from typing import Literal
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from stateroom.store.records import Head

FOREVER = 253_370_764_800.0
"""The year 9999."""

BURIED = -FOREVER
"""The expiry of a buried session: a sweep at this time removes buried sessions, and nothing else."""

_PREFIX = "stateroom-tier:"

Kind = Literal["leaving", "arriving", "thawing", "away"]


class Mark(msgspec.Struct, frozen=True):
    """Where a session is, or goes; `token` identifies the move."""

    kind: Kind
    token: str
    holder: str | None
    until: float
    closed: bool
    expires: float

    @property
    def text(self) -> str:
        """The mark as the holder of a lease."""
        return _PREFIX + msgspec.json.encode(self).decode()


def new_token() -> str:
    """A unique token for a move."""
    return uuid4().hex


def mark_for(head: Head, kind: Kind, token: str) -> Mark:
    """A mark that remembers what it replaces in this head."""
    return Mark(kind, token, head.holder, head.leased_until, head.closed, head.expires)


def mark_of(head: Head) -> Mark | None:
    """The mark of a head."""
    if head.holder is None or not head.holder.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(head.holder[len(_PREFIX) :], type=Mark)
    except msgspec.DecodeError:  # damaged: then it is a lease that never ends, of this session and no other
        return None


def kind_of(head: Head) -> Kind | None:
    """The kind of a head's mark."""
    mark = mark_of(head)
    return mark.kind if mark else None


def is_buried(head: Head) -> bool:
    """Whether this is only the rest of a session that has moved to the cold tier."""
    return head.expires == BURIED


def marked(head: Head, kind: Literal["arriving", "away"], token: str) -> Head:
    """A head that cannot be added to, is not counted, and is not swept."""
    mark = mark_for(head, kind, token)
    return replace(head, holder=mark.text, leased_until=FOREVER, closed=True, expires=FOREVER)


def visible(head: Head) -> Head:
    """A head without its mark."""
    mark = mark_of(head)
    if mark is None:
        return head
    if mark.kind in ("leaving", "thawing"):  # which was a lease, so the fence went up by one
        return replace(head, holder=mark.holder, leased_until=mark.until, fence=head.fence - 1)
    return replace(head, holder=mark.holder, leased_until=mark.until, closed=mark.closed, expires=mark.expires)
