"""The context of event-sourced states: they change in a tool by events, and when these are folded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from stateroom.errors import InvalidState, ReadOnlyState
from stateroom.state.commits import changes_in, commit
from stateroom.state.compiler import shape_of
from stateroom.state.draft import draft_of
from stateroom.state.draft_context import DraftContext
from stateroom.state.equality import deep_equal
from stateroom.state.events import Event, applier_of
from stateroom.state.model import State
from stateroom.state.patch import Patch

S = TypeVar("S", bound=State)


class EventContext(DraftContext, eq=False, kw_only=True):
    """For a tool whose state changes by events only: its draft can be changed while one is applied."""

    base: State
    by_events: str
    """Why the draft cannot be changed otherwise."""
    emitted: list[Event] = []
    failed: Event | None = None

    @classmethod
    def of(cls, state: State, pool: dict[int, Any] | None = None) -> EventContext:
        """The context of a draft of this state."""
        why = f"{type(state).__name__} can only change by events; call state.emit(…)"
        return cls(why, pool, base=state, by_events=why)

    def emit(self, draft: Any, event: Event) -> None:
        if self.closed is not self.by_events or draft._draft_base is not self.base:
            super().emit(draft, event)  # which refuses it
        self._ensure_not_failed()
        applier_of(type(self.base), self.base.__appliers__, event)  # an event that nothing applies does no harm
        happened = shape_of(type(event)).validate_copy(event, ())  # valid, and shared with nobody
        self.failed, self.closed = happened, None
        try:
            _happen(draft, self.base, happened)
        finally:
            if self.closed is None:  # else the call has ended meanwhile, without waiting for the tool's thread
                self.closed = self.by_events
        self.emitted.append(happened)
        self.failed = None

    def check_events(self, draft: Any) -> None:
        """Raise if anything has changed that the events do not account for."""
        self._ensure_not_failed()
        again = draft_of(self.base, DraftContext())
        for event in self.emitted:
            _happen(again, self.base, event)
        if not deep_equal(_by_place(changes_in(draft)), _by_place(changes_in(again))):
            raise ReadOnlyState(f"{self.by_events}. Applying its events again gives a different state")

    def _ensure_not_failed(self) -> None:
        if self.failed is not None:
            raise InvalidState(
                (), f"{type(self.failed).__name__} could not be applied; check the state before you emit an event"
            )


def _by_place(changes: Patch) -> Patch:
    """Changes in an order that does not depend on which place was looked at first; at one place it stays."""
    return sorted(changes, key=lambda change: repr(change[1]))


def fold(state: S, events: Iterable[Event]) -> S:
    """Return the state after some events; it shares all unchanged parts with the given state.

    For a read-only state, such as `session.state`, the result is read-only too.
    """
    context: DraftContext | None = getattr(state, "_draft_context", None)
    base: Any = state if context is None else committed(state)
    draft = draft_of(base, DraftContext())
    for event in events:
        _happen(draft, base, event)
    folded = commit(draft).state
    return draft_of(folded, DraftContext(context.closed)) if context is not None else folded  # type: ignore[no-any-return]


def committed(draft: Any) -> Any:
    """The state of a draft; a copy, if the draft has changed."""
    return shape_of(type(draft._draft_base)).validate_copy(draft, ()) if changes_in(draft) else draft._draft_base


def _happen(draft: Any, base: State, event: Event) -> None:
    """Apply an event to a draft; the event itself stays as it is, whatever becomes of the values in it there."""
    method, shape = applier_of(type(base), base.__appliers__, event), shape_of(type(event))
    method(draft, shape.validate_copy(event, ()) if shape.branches else event)
