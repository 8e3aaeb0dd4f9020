"""The context that the drafts of one call share, and the draft for each kind of value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import msgspec
from pydantic import BaseModel

from stateroom.errors import DefinitionError, ReadOnlyState
from stateroom.state.events import Event
from stateroom.state.shape import Shape
from stateroom.state.values import LEAVES

DRAFTS: dict[type, Callable[[Any, DraftContext, Any], Any]] = {}
"""Makes a draft of a value, by its type; each module of drafts adds its own."""


class DraftContext(msgspec.Struct, eq=False):
    """The context that the drafts of one call share."""

    closed: str | None = None
    """Why they may not be changed; None while they may."""
    pool: dict[int, Any] | None = None
    """Drafts of wide containers that an earlier call left behind; see `pool_drafts`."""
    emitted: Sequence[Event] = ()
    """The events so far."""

    def check(self) -> None:
        """Raise if the drafts may not be changed."""
        if self.closed is not None:
            raise ReadOnlyState(self.closed)

    def emit(self, draft: Any, event: Event) -> None:
        """Apply an event to the state of a draft; refused, unless the state changes by events."""
        self.check()
        raise DefinitionError(
            f"{type(event).__name__} cannot be emitted on this {type(draft).__name__}: only tools can emit events, on "
            "the session's state, and its class needs methods marked @applies"
        )

    def draft(self, value: Any, shape: Shape) -> Any:
        """A draft of a committed value that stands at a place of this shape; the value itself if it cannot change."""
        kind = type(value)
        if kind in LEAVES:
            return value
        if self.pool and (pooled := self.pool.pop(id(value), None)) is not None:
            pooled._draft_context = self
            return pooled
        shape = shape.member(kind)
        if shape.fixed:
            return value
        draft = DRAFTS.get(kind)
        if draft is not None:
            return draft(value, self, shape)
        model = kind.__dict__.get("__stateroom_shape__")
        return value if model is None else DRAFTS[BaseModel](value, self, model)


Past = list[tuple[Any, list[Any]]]
"""Older committed containers, each with the places at which the next one differs.

Once nobody holds the oldest any more, it is brought up to date at a few places, which saves copying the newest.
"""

MAX_PAST = 16


def free_container(past: Past) -> tuple[Any, list[list[Any]]]:
    """The oldest container that nothing else refers to, and where it differs from the newest; else (None, [])."""
    if len(past) > MAX_PAST:
        del past[0]  # something refers to it, such as a fork, perhaps for long
    if not past or getrefcount(past[0][0]) != 2:  # `past`, and the argument of `getrefcount`
        return None, []
    changed = [places for _, places in past]
    return past.pop(0)[0], changed
