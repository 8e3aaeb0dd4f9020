"""A room: a live session as one process holds it, between the store and the handles that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from stateroom.errors import InvalidState, SessionSealed, TooLarge, UnknownSession
from stateroom.session.history import Document, History, write_document
from stateroom.session.journal import LogEntry, read_entry, write_body
from stateroom.session.moment import Moment
from stateroom.state import Patch, State, patched
from stateroom.state.shape import invalid
from stateroom.store import Entry, Head, Snapshot, Store

TRAIL = 8
"""How many recent states a room keeps, so that going back to one costs nothing."""

MIN_SNAPSHOT = 4096
"""Changes of fewer bytes than this are never worth a snapshot."""

SNAPSHOT_RATIO = 2
"""A snapshot is written when the changes since the last one weigh this many times as much as it does."""


FOREBEARS = 16
"""Of so many sessions that it was forked from, one after another, a room remembers the call ids."""


class Step(msgspec.Struct, frozen=True):
    """An entry that is about to be committed, and what the room will hold after it."""

    entry: Entry
    state: Any
    moment: Moment
    snapshot: Snapshot | None
    snapshot_bytes: int
    tail_bytes: int
    grown: int


class Room:
    """The newest state of a session, and what is needed to commit to it with one round trip to the store."""

    def __init__(self, store: Store, head: Head, state_type: type[State], max_bytes: int) -> None:
        self.store = store
        self.max_bytes = max_bytes
        self.head = head
        self.state_type = state_type
        self.lock = asyncio.Lock()
        self.state: Any = None
        self.moment = Moment(0, 0.0)
        self.stale = True
        """The store may be ahead of, or beside, what is held here."""
        self.calls: tuple[set[str], ...] = (set(),)
        """Call ids that may be in the log: those committed here, and those of the sessions it was forked from."""
        self.all_calls_known = False
        """True when no other call id is in the log."""
        self.seeded = Entry(0, "seed", 0.0, b"")
        """The entry with the task; in bytes it is small, and with `memory://` it is there anyway."""
        self.judged: dict[str, Any] | None = None
        """What the entry with the verdict says, if there is one: it seals the session."""
        self.spares: dict[int, Any] = {}
        """Drafts of wide containers that one call leaves for the next."""
        self._trail: dict[int, tuple[Any, Moment]] = {}
        self._snapshot_bytes = self._tail_bytes = self._grown = 0

    def settle(self, state: Any, moment: Moment) -> None:
        """Hold this state as the one at the head's revision."""
        self.state, self.moment, self.stale = state, moment, False
        trail = self._trail
        trail[self.head.revision] = (state, moment)
        if len(trail) > TRAIL:
            del trail[next(iter(trail))]

    def refuse_if_sealed(self) -> None:
        """Raise if the session has its verdict."""
        if self.judged is not None:
            raise SessionSealed(self.head.id)

    def forget(self) -> None:
        """Trust no state that is held here: the next use reads it from the store."""
        self.state, self.stale = None, True
        self.spares.clear()
        self._trail.clear()

    async def refresh(self) -> None:
        """Catch up with what others have committed."""
        while True:
            known, state, moment = self.head.revision, self.state, self.moment
            head = await self.store.head(self.head.id)
            if head.created != self.head.created:  # it was deleted, and another one seeded that has its id
                raise UnknownSession(head.id)
            news = await self.store.entries(head.id, after=known, until=head.revision)
            entries = [read_entry(entry) for entry in news]
            if state is None or any(entry.kind == "rewind" for entry in entries):
                document = await History(self.store).document(head.id, head.revision)
                weights = (document.snapshot_bytes, document.tail_bytes)
                state, moment = self.typed(document), document.moment
            else:
                weights = (self._snapshot_bytes, self._tail_bytes + sum(len(entry.body) for entry in news))
                for entry in entries:
                    if entry.kind == "call":
                        state = patched(state, entry.patch)
                        moment = moment.after(entry.facts.get("advance", 0.0))
            if self.head.revision == known:  # else a commit of this process came in between
                break
        self._snapshot_bytes, self._tail_bytes = weights
        self._grown = self._tail_bytes
        self.calls[0].update(entry.call_id for entry in news if entry.call_id is not None)
        self.judged = next((entry.facts for entry in entries if entry.kind == "verdict"), self.judged)
        self.head = head
        self.settle(state, moment)

    def prepare(
        self,
        kind: str,
        facts: dict[str, Any],
        at: float,
        patch: Patch = [],  # noqa: B006 - never changed
        after: tuple[Any, Moment] | None = None,
        call_id: str | None = None,
    ) -> Step:
        """The step that says these facts and leads to the state and moment `after`, by default those of now."""
        body, growth = write_body(facts, patch)
        entry = Entry(self.head.revision + 1, kind, at, body, call_id)
        state, moment = after or (self.state, self.moment)
        tail_bytes = self._tail_bytes + len(entry.body)
        small = tail_bytes <= MIN_SNAPSHOT or tail_bytes <= SNAPSHOT_RATIO * self._snapshot_bytes
        grown = self._grown + growth
        # No state is larger than its last snapshot and what it has grown by since: it is weighed near the limit only.
        if small and (not patch or self._snapshot_bytes + grown <= self.max_bytes):
            return Step(entry, state, moment, None, self._snapshot_bytes, tail_bytes, grown)
        snapshot = Snapshot(entry.revision, write_document(state, moment))
        if patch and len(snapshot.body) > self.max_bytes:
            raise TooLarge(f"the state would be larger than the {self.max_bytes:,} bytes that it may have")
        return Step(entry, state, moment, snapshot, len(snapshot.body), 0, 0)

    async def commit(self, step: Step, expires: float | None) -> None:
        """Append a step that was prepared; `expires` renews the session's life."""
        entry = step.entry
        closes = entry.kind == "close"
        self.stale = True  # until the store has said yes, whatever happens
        await self.store.append(self.head.id, entry, expires=expires, snapshot=step.snapshot, closes=closes)
        self._snapshot_bytes, self._tail_bytes, self._grown = step.snapshot_bytes, step.tail_bytes, step.grown
        self.head = replace(self.head, revision=entry.revision, expires=expires or self.head.expires, closed=closes)
        if entry.call_id is not None:
            self.calls[0].add(entry.call_id)
        if entry.kind == "verdict":
            self.judged = read_entry(entry).facts
        self.settle(step.state, step.moment)

    async def at(self, revision: int) -> tuple[Any, Moment]:
        """The state and moment at a revision."""
        if revision in self._trail:
            return self._trail[revision]
        document = await History(self.store).document(self.head.id, revision)
        return self.typed(document), document.moment

    async def recorded(self, call_id: str) -> LogEntry | None:
        """The entry of a call that was committed before."""
        if self.all_calls_known and not any(call_id in known for known in self.calls):
            return None
        return await History(self.store).find_call(self.head.id, call_id)

    def branch(self, head: Head, state: Any, moment: Moment) -> Room:
        """A room for a fork of this session, which shares the state."""
        room = Room(self.store, head, self.state_type, self.max_bytes)
        room.seeded = self.seeded
        room.calls = (set(), *self.calls[:FOREBEARS])
        room.all_calls_known = self.all_calls_known and len(self.calls) <= FOREBEARS
        room._snapshot_bytes, room._tail_bytes, room._grown = self._snapshot_bytes, self._tail_bytes, self._grown
        room.settle(state, moment)
        return room

    def typed(self, document: Document) -> State:
        """The stored state as the author's type."""
        validator = self.state_type.__pydantic_validator__
        try:
            state: State = validator.validate_python(document.state, by_name=True, by_alias=False)
        except ValidationError as error:
            found = invalid(error, (), document.state)
            raise InvalidState((), f"the stored state of session {self.head.id!r} is not valid: {found}") from None
        return state


def new_room(
    store: Store, head: Head, state: State, moment: Moment, facts: dict[str, Any], max_bytes: int
) -> tuple[Room, Sequence[Entry], Snapshot]:
    """A room for a session that is about to be created, with its first entry and snapshot."""
    room = Room(store, head, type(state), max_bytes)
    entry = Entry(head.revision, "seed", head.created, write_body(facts, [])[0])
    snapshot = Snapshot(head.revision, write_document(state, moment))
    if len(snapshot.body) > max_bytes:
        raise TooLarge(f"the seeded state is larger than the {max_bytes:,} bytes that it may have")
    room.seeded = entry
    room.all_calls_known = True
    room._snapshot_bytes = len(snapshot.body)
    room.settle(state, moment)
    return room, [entry], snapshot
