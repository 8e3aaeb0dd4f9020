"""What the heads in the two tiers say about where a session is.

A mark stands in a head in place of the holder of the lease, with a lease that ends in the year 9999, so that no one
else gets it. What it replaces it remembers: a session that was moved, or is being moved, looks as it did before.

| tier | mark | |
|---|---|---|
| warm | none | the session is here, whatever the cold tier says |
| warm | leaving | it is here, and cannot be changed until it has been moved to the cold tier |
| warm | arriving | it is not here yet: the cold tier has it until it is open here |
| warm | buried | it was here; the cold tier has it. What is left goes with the next sweep of what is buried |
| cold | none | it is here, at rest, if the warm tier does not have it |
| cold | thawing | as with none, and somebody moves it to the warm tier |
| cold | away | it went to the warm tier; this is a copy of what it was then |
"""

from __future__ import annotations

from typing import Literal
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from stateroom.store.contract import Head, Record

FOREVER = 253_370_764_800.0
"""The year 9999."""

BURIED = -FOREVER
"""The expiry of what is left of a session that has moved down: a sweep at this time removes that, and nothing else."""

_PREFIX = "stateroom-tier:"

Kind = Literal["leaving", "arriving", "thawing", "away"]


class Mark(msgspec.Struct, frozen=True):
    """Where a session is, or goes; `token` tells one move from all others."""

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
    """What no other move has."""
    return uuid4().hex


def mark_for(head: Head, kind: Kind, token: str) -> Mark:
    """A mark that remembers what it replaces in this head."""
    return Mark(kind, token, head.holder, head.leased_until, head.closed, head.expires)


def mark_of(head: Head) -> Mark | None:
    """The mark that a head has."""
    if head.holder is None or not head.holder.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(head.holder[len(_PREFIX) :], type=Mark)
    except msgspec.DecodeError:  # damaged: then it is a lease that never ends, of this session and no other
        return None


def kind_of(head: Head) -> Kind | None:
    """The kind of mark that a head has."""
    mark = mark_of(head)
    return mark.kind if mark else None


def is_buried(head: Head) -> bool:
    """Whether this is but what is left of a session that has moved down."""
    return head.expires == BURIED


def marked(head: Head, kind: Literal["arriving", "away"], token: str) -> Head:
    """A head that nobody can add to, that is not counted, and that no sweep removes."""
    mark = mark_for(head, kind, token)
    return replace(head, holder=mark.text, leased_until=FOREVER, closed=True, expires=FOREVER)


def visible(head: Head) -> Head:
    """A head as it is without its mark."""
    mark = mark_of(head)
    if mark is None:
        return head
    if mark.kind in ("leaving", "thawing"):  # which was a lease, so the fence went up by one
        return replace(head, holder=mark.holder, leased_until=mark.until, fence=head.fence - 1)
    return replace(head, holder=mark.holder, leased_until=mark.until, closed=mark.closed, expires=mark.expires)


def head_only(head: Head) -> Record:
    """The record that changes nothing but the head of a session which is at this revision already."""
    return Record(head, [], [], {})
