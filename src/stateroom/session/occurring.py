"""What has happened in a session: the events in its log, as the author's classes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

from stateroom.errors import SchemaChanged, UnknownRevision
from stateroom.session.history import History, line_to
from stateroom.state import Event, State, fold, read_event
from stateroom.store import Store

S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Occurred:
    """An event, and the revision of the session that it came with."""

    revision: int
    event: Event


async def occurred(
    store: Store, session: str, state_type: type[State], *, after: int, until: int
) -> AsyncIterator[Occurred]:
    """The events after a revision that led to the state at another, in order; what was rewound is not among them.

    Raises `UnknownRevision` if some of them were pruned, and `SchemaChanged` if one cannot be read any more.
    """
    entries = [entry async for entry in History(store).entries(session, after=after, until=until)]
    start, line = line_to(entries, until)
    if start > after:
        raise UnknownRevision(
            session,
            f"the past of session {session!r} was pruned, with events up to revision {start}; "
            f"those since can be had: events(after={start})",
        )
    for entry in line:
        for facts in entry.facts.get("events", ()):
            try:
                event = read_event(state_type, state_type.__appliers__, facts)
            except SchemaChanged as error:
                where = f"event {facts[0]!r} at revision {entry.revision} of session {session!r}"
                raise SchemaChanged(f"{where} cannot be read: {error}") from error.__cause__
            yield Occurred(entry.revision, event)


async def refold(seeded: S, events: AsyncIterable[Occurred]) -> S:
    """What events make of a seeded state: the state of a session as the classes of now would have it."""
    state, call, revision = seeded, list[Event](), 0
    async for each in events:
        if each.revision != revision:
            state, call, revision = fold(state, call), [], each.revision
        call.append(each.event)
    return fold(state, call)
