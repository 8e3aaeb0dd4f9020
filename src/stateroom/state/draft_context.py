"""What the drafts of one call share, and how each kind of value is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from stateroom.errors import DefinitionError, ReadOnlyState
from stateroom.state.events import Event
from stateroom.state.shape import Shape
from stateroom.state.values import LEAVES

DRAFTS: dict[type, Callable[[Any, Any, DraftContext], Any]] = {}
"""Makes a draft of a value, by its type; each module of drafts adds its own."""


class DraftContext:
    """What the drafts of one call share: whether they may be changed, and if not, why.

    `spares` are drafts of wide containers that an earlier call left behind; see `leave_spares`.
    """

    __slots__ = ("closed", "spares")

    emitted: Sequence[Event] = ()
    """The events so far."""

    def __init__(self, closed: str | None = None, spares: dict[int, Any] | None = None) -> None:
        self.closed = closed
        self.spares = spares

    def check(self) -> None:
        """Raise if the drafts may not be changed."""
        if self.closed is not None:
            raise ReadOnlyState(self.closed)

    def emit(self, draft: Any, event: Event) -> None:
        """Let an event happen to the state that a draft stands for; refused, unless the state changes by events."""
        self.check()
        raise DefinitionError(
            f"{type(event).__name__} cannot be emitted on this {type(draft).__name__}: events are emitted by tools, on "
            "the session's state, if its class has methods marked @applies"
        )

    def end(self, draft: Any) -> None:
        """Raise if a draft must not be committed as it is."""

    def draft(self, value: Any, shape: Shape) -> Any:
        """A draft of a committed value that stands at a place of this shape; the value itself if it cannot change."""
        kind = type(value)
        if kind in LEAVES:
            return value
        if self.spares and (spare := self.spares.pop(id(value), None)) is not None:
            spare._draft_desk = self
            return spare
        shape = shape.member(kind)
        draft = DRAFTS.get(kind)
        if draft is not None:
            return draft(value, shape, self)
        model = kind.__dict__.get("__stateroom_shape__")
        return value if model is None or model.fixed else DRAFTS[BaseModel](value, model, self)
