"""A room: a live session as one process holds it, between the store and the handles that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from stateroom.errors import InvalidState, SessionSealed, TooLarge, UnknownSession
from stateroom.session.history import Document, History, Weight, write_document
from stateroom.session.journal import LogEntry, read_stored, write_body
from stateroom.session.moment import Moment
from stateroom.state import Elsewhere, Patch, State, decode, encode_json, patched
from stateroom.state.shape import invalid
from stateroom.store import Blobs, Entry, Head, Snapshot, Store

if TYPE_CHECKING:
    from stateroom.session.lease import Lease

TRAIL = 8
"""Of how many revisions, up to the newest, a room keeps the states, so that going back to one costs nothing."""

MIN_SNAPSHOT = 4096
"""Changes of fewer bytes than this are never worth a snapshot."""

SNAPSHOT_RATIO = 2
"""A snapshot is written when the changes since the last one weigh this many times as much as it does."""

DIGESTING = 64
"""A snapshot needs the digests of the large values in it: so many bytes of these weigh as much as one of its own."""


FOREBEARS = 16
"""Of so many sessions that it was forked from, one after another, a room remembers call ids and large values."""


NO_DIGESTS: frozenset[str] = frozenset()

OWN = "\n"
"""How a call id of our own begins; no caller's does."""


class Step(msgspec.Struct, frozen=True):
    """An entry that is about to be committed, and what the room will hold after it."""

    entry: Entry
    state: Any
    moment: Moment
    snapshot: Snapshot | None
    blobs: Blobs
    """The large values that are not stored yet."""
    weight: Weight
    judged: dict[str, Any] | None
    """What a verdict says."""


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
        self.digests = NO_DIGESTS
        """Of large values that are stored for this session, and for those that it was forked from."""
        self.seeded = Entry(0, "seed", 0.0, b"")
        """The entry with the task, nothing of it missing; in bytes it is small, and `memory://` may have it anyway."""
        self.judged: dict[str, Any] | None = None
        """What the entry with the verdict says, if there is one: it seals the session."""
        self.held: Lease | None = None
        """The lease, if this process has it."""
        self.user: str | None = None
        """Whose state the session shares, if that was asked for."""
        self.spares: dict[int, Any] = {}
        """Drafts of wide containers that one call leaves for the next."""
        self._trail: dict[int, tuple[Any, Moment]] = {}
        self._weight = Weight()

    def settle(self, state: Any, moment: Moment) -> None:
        """Hold this state as the one at the head's revision."""
        self.state, self.moment, self.stale = state, moment, False
        trail = self._trail
        trail[self.head.revision] = (state, moment)
        while (oldest := next(iter(trail))) <= self.head.revision - TRAIL:  # others may have gone on by many at once
            del trail[oldest]

    def is_held_by_other(self, now: float) -> bool:
        """Whether another worker has the session for itself, by what is known here."""
        mine = self.held is not None and self.held.token == self.head.holder
        return not mine and self.head.leased(now)

    @property
    def is_fresh(self) -> bool:
        """Whether nobody can have changed the session without this process knowing."""
        return not self.stale and self.held is not None and self.held.is_sure

    def refuse_if_sealed(self) -> None:
        """Raise if the session has its verdict."""
        if self.judged is not None:
            raise SessionSealed(self.head.id)

    def forget(self) -> None:
        """Trust no state that is held here: the next use reads it from the store."""
        self.state, self.stale = None, True
        self.spares.clear()
        self._trail.clear()

    def hold(self, document: Document) -> None:
        """Hold what was read of the session."""
        self.head = document.head
        self._weight = document.weight
        self.digests |= document.digests
        self.settle(self.typed(document), document.moment)

    async def refresh(self) -> None:
        """Catch up with what others have committed."""
        while True:
            known, state, moment = self.head.revision, self.state, self.moment
            head = await self.store.head(self.head.id)
            if head.created != self.head.created:  # it was deleted, and another one seeded that has its id
                raise UnknownSession(head.id)
            news = await self.store.entries(head.id, after=known, until=head.revision)
            stored = [read_stored(entry) for entry in news]
            digests = {value.digest for each in stored for value in each.large}
            history = History(self.store)
            entries = await history.whole(head, stored)
            pruned = len(news) < head.revision - known
            if state is None or pruned or any(entry.kind == "rewind" for entry in entries):
                document = await history.document(head.id, head.revision)
                weight, digests = document.weight, digests | document.digests
                state, moment = self.typed(document), document.moment
            else:
                weight = self._weight.after(sum(len(entry.body) for entry in news), sum(each.growth for each in stored))
                for entry in entries:
                    if entry.kind == "call":
                        state = patched(state, entry.patch)
                        moment = moment.after(entry.facts.get("advance", 0.0))
            if self.head.revision == known:  # else a commit of this process came in between
                break
        self._weight = weight
        if digests:
            self.digests |= digests
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
        *,
        decided: bool = False,
    ) -> Step:
        """The step that says these facts and leads to the state and moment `after`, by default those of now."""
        large = self.store.large
        body = write_body(facts, patch, large)
        entry = Entry(self.head.revision + 1, kind, at, body.data, call_id or self._own_id())
        state, moment = after or (self.state, self.moment)
        judged = decode(encode_json(facts)) if kind == "verdict" else None
        weight = self._weight.after(len(body.data), body.growth)
        # No state is larger than its last snapshot and what it has grown by since: it is weighed near the limit only.
        if _is_small(weight) and (not patch or weight.state <= self.max_bytes):
            return Step(entry, state, moment, None, self._unstored(body.blobs), weight, judged)
        elsewhere = Elsewhere(large)
        snapshot = Snapshot(entry.revision, write_document(state, moment, elsewhere))
        weight = Weight(len(snapshot.body), elsewhere.size)
        if patch and not decided and weight.state > self.max_bytes:
            raise TooLarge(f"the state would be larger than the {self.max_bytes:,} bytes that it may have")
        return Step(entry, state, moment, snapshot, self._unstored(body.blobs | elsewhere.blobs), weight, judged)

    def _unstored(self, blobs: dict[str, bytes]) -> Blobs:
        """Those of the large values that are not known to be stored."""
        if not blobs:
            return blobs
        new = [digest for digest in blobs if digest not in self.digests]
        return blobs if len(new) == len(blobs) else {digest: blobs[digest] for digest in new}

    def _own_id(self) -> str | None:
        """An id for an entry that nobody has named, where the answer to a commit can be lost: by it one can tell."""
        return OWN + token_hex(8) if self.store.remote else None

    async def commit(self, step: Step, expires: float | None) -> None:
        """Append a step that was prepared; `expires` renews the session's life."""
        entry = step.entry
        closes = entry.kind == "close"
        self.stale = True  # until the store has said yes, whatever happens
        await self.store.append(
            self.head.id,
            entry,
            expires=expires,
            fence=self.head.fence,
            snapshot=step.snapshot,
            blobs=step.blobs,
            closes=closes,
        )
        self._weight = step.weight
        if step.blobs:
            self.digests |= step.blobs.keys()
        self.head = replace(self.head, revision=entry.revision, expires=expires or self.head.expires, closed=closes)
        if entry.call_id is not None and entry.call_id[0] != OWN:
            self.calls[0].add(entry.call_id)
        self.judged = step.judged or self.judged
        self.settle(step.state, step.moment)

    async def at(self, revision: int) -> tuple[Any, Moment]:
        """The state and moment at a revision."""
        if revision in self._trail:
            return self._trail[revision]
        document = await History(self.store).document(self.head.id, revision)
        self.digests |= document.digests
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
        room.digests = self.digests
        room._weight = self._weight
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


def _is_small(weight: Weight) -> bool:
    """Whether the changes since the last snapshot are not yet worth another."""
    return weight.tail <= MIN_SNAPSHOT or weight.tail <= SNAPSHOT_RATIO * (weight.snapshot + weight.large // DIGESTING)


def new_room(
    store: Store, head: Head, state: State, moment: Moment, facts: dict[str, Any], max_bytes: int
) -> tuple[Room, Sequence[Entry], Snapshot, Blobs]:
    """A room for a session that is about to be created, with its first entry and snapshot, and its large values."""
    room = Room(store, head, type(state), max_bytes)
    body = write_body(facts, [], store.large)
    entry = Entry(head.revision, "seed", head.created, body.data)
    elsewhere = Elsewhere(store.large)
    snapshot = Snapshot(head.revision, write_document(state, moment, elsewhere))
    room._weight = Weight(len(snapshot.body), elsewhere.size)
    if room._weight.state > max_bytes:
        raise TooLarge(f"the seeded state is larger than the {max_bytes:,} bytes that it may have")
    room.seeded = replace(entry, body=write_body(facts, []).data) if body.blobs else entry
    room.all_calls_known = True
    blobs = body.blobs | elsewhere.blobs
    if blobs:
        room.digests = frozenset(blobs)
    room.settle(state, moment)
    return room, [entry], snapshot, blobs
