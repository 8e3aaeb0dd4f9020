"""A room: a live session as one process holds it, between the store and the handles that use it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stateroom.errors import InvalidState, SessionSealed, TooLarge, UnknownSession
from stateroom.session.history import Document, History, Start, Weight, followed, write_document
from stateroom.session.journal import LogEntry, Stored, read_stored, write_body
from stateroom.session.moment import Moment
from stateroom.session.reading import Reader, Standing, schema_facts
from stateroom.state import Elsewhere, Patch, State, decode, encode_json, patched
from stateroom.store import NO_BLOBS, Blobs, Entry, Head, Snapshot

if TYPE_CHECKING:
    from stateroom.session.holding import Holding
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


LIGHT = 64 * 1024
"""A state of no more bytes than this, with the changes that lead to it, is read at once when a session goes back."""

ALWAYS = ("verdict", "close", "failed", "asked", "migrated")
"""The kinds of entries that a session gets however long its log is: they end it, or what was begun before."""

FULL = "it can be read, verified, forked and closed, and goes on when its past is pruned (`stateroom store prune`)"

OWN = "\n"
"""How a call id of our own begins; no caller's does."""


class Step(msgspec.Struct, frozen=True):
    """An entry that is about to be committed, and what the room will hold after it."""

    entry: Entry
    standing: Standing
    snapshot: Snapshot | None
    blobs: Blobs
    """The large values that are not stored yet."""
    weight: Weight
    judged: dict[str, Any] | None
    """What a verdict says."""


class Room:
    """The newest state of a session, and what is needed to commit to it with one round trip to the store."""

    def __init__(self, reader: Reader, head: Head, max_bytes: int, max_log: int = sys.maxsize) -> None:
        self.reader = reader
        self.store = reader.store
        self.state_type = reader.state_type
        self.max_bytes = max_bytes
        self.max_log = max_log
        self.head = head
        self.lock = asyncio.Lock()
        self.state: Any = None
        """None when it is not at hand."""
        self.moment = Moment(0, 0.0)
        """While the state is not at hand, it knows only what is pending."""
        self.outdated = False
        """Whether the state is stored in an older schema than it has here."""
        self.stale = True
        """The store may be ahead of, or beside, what is held here."""
        self.calls: tuple[set[str], ...] = (set(),)
        """Call ids that may be in the log: those committed here, and those of the sessions it was forked from."""
        self.all_calls_known = False
        """True when no other call id is in the log."""
        self.digests: tuple[set[str], ...] = (set(),)
        """Of large values that are stored for this session, and for those that it was forked from. Only the first set
        grows; the others are shared with forks."""
        self.seeded = Entry(0, "seed", 0.0, b"")
        """The entry with the task, nothing of it missing; in bytes it is small, and `memory://` may have it anyway."""
        self.judged: dict[str, Any] | None = None
        """What the entry with the verdict says, if there is one: it seals the session."""
        self.held: Lease | None = None
        """The lease, if this process has it."""
        self.holding: Holding | None = None
        """The session's resources that this process has, if any were asked for."""
        self.user: str | None = None
        """Whose state the session shares, if that was asked for."""
        self.spares: dict[int, Any] = {}
        """Drafts of wide containers that one call leaves for the next."""
        self._trail: dict[int, Standing] = {}
        self._weight = Weight()
        self._whole_under: int | None = None
        """The fence under which nothing was found to be pruned."""

    def settle(self, standing: Standing) -> None:
        """Hold this state as the one at the head's revision."""
        self.state, self.moment, self.outdated = standing.state, standing.moment, standing.outdated
        self.stale = standing.state is None  # whoever needs it reads it
        trail, newest = self._trail, self.head.revision
        if not self.stale:
            trail[newest] = standing
        while trail and (oldest := next(iter(trail))) <= newest - TRAIL:  # others may have gone on by many
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

    def hold(self, standing: Standing, document: Document) -> None:
        """Hold what was read of the session."""
        self.head = document.head
        self._weight = document.weight
        self.digests[0].update(document.digests)
        self.settle(standing)
        if self._weight.log >= self.max_log:
            self.stale = True  # perhaps some of it was pruned: whoever needs to know looks

    async def refresh(self, *, unread: bool = False) -> None:
        """Catch up with what others have committed. Unless it may stay `unread`, the state is at hand then."""
        while True:
            known, state, moment = self.head.revision, self.state, self.moment
            head = await self.store.head(self.head.id)
            if head.created != self.head.created:  # it was deleted, and another one seeded that has its id
                raise UnknownSession(head.id)
            news = await self.store.entries(head.id, after=known, until=head.revision)
            stored = [read_stored(entry) for entry in news]
            digests = {value.digest for each in stored for value in each.large}
            pruned = len(news) < head.revision - known
            written, growth = sum(len(entry.body) for entry in news), sum(each.growth for each in stored)
            large = sum(value.size for each in stored for value in each.large)
            weight = self._weight.after(written, growth, large)
            for each in stored:
                moment = followed(moment, each.entry)
            anew = state is None or self.outdated or pruned or any(_begins_anew(each.entry) for each in stored)
            if anew and not unread:
                standing, document = await self.reader.read(head.id, head.revision)
                weight, digests = document.weight, digests | document.digests
            else:
                standing = Standing(None if anew else await self._patched(head, stored), moment)
            if weight.log >= self.max_log:
                weight = replace(weight, log=(await self.store.size(head.id)).bytes)
            verdicts = await History(self.store).whole(head, [each for each in stored if each.entry.kind == "verdict"])
            if self.head.revision == known and self.state is state:  # else a task of this process came in between
                break
        self._weight = weight
        self.digests[0].update(digests)
        self.calls[0].update(entry.call_id for entry in news if entry.call_id is not None)
        self.judged = verdicts[0].facts if verdicts else self.judged
        self.head = head
        self.settle(standing)

    async def _patched(self, head: Head, news: Iterable[Stored]) -> Any:
        """The state that is held here, after what others have done since."""
        state = self.state
        for entry in await History(self.store).whole(head, [each for each in news if each.entry.kind == "call"]):
            try:
                state = patched(state, entry.patch)
            except InvalidState as error:  # not by the code that it names
                message = f"revision {entry.revision} of session {head.id!r} is not valid here: {error}"
                raise InvalidState((), message) from error
        return state

    def prepare(
        self,
        kind: str,
        facts: dict[str, Any],
        at: float,
        patch: Patch = [],  # noqa: B006 - never changed
        after: Standing | None = None,
        call_id: str | None = None,
        *,
        saved: Blobs = NO_BLOBS,
        decided: bool = False,
    ) -> Step:
        """The step that says these facts and leads to where the session stands `after`, by default where it does now.

        `saved` is what was saved of resources, which is stored with it.
        If the state is stored in an older schema, no patch can build on that: a snapshot in the new one is written.
        """
        if self._weight.log >= self.max_log and not (kind in ALWAYS or decided or call_id in self.moment.pending):
            self.stale = True  # should some of it be pruned, the next attempt finds that out
            raise TooLarge(f"the session's log has the {self.max_log:,} bytes that it may have: {FULL}")
        large = self.store.large
        standing = after or Standing(self.state, self.moment.following(kind, call_id, facts), self.outdated)
        unread = standing.state is None
        migrates = self.outdated and not unread
        if migrates:
            facts = {**facts, "schema": schema_facts(self.state_type)}
        body = write_body(facts, patch, large)
        entry = Entry(self.head.revision + 1, kind, at, body.data, call_id or self._own_id())
        blobs = self._unstored({**body.blobs, **saved} if saved else body.blobs)
        judged = decode(encode_json(facts)) if kind == "verdict" else None
        weight = self._weight.after(len(body.data), body.growth, _size(blobs))
        # No state is larger than its last snapshot and what it has grown by since: it is weighed near the limit only.
        is_small = _is_small(weight) and (not patch or weight.state <= self.max_bytes)
        if unread or (not migrates and (is_small or standing.outdated)):
            return Step(entry, standing, None, blobs, weight, judged)
        elsewhere = Elsewhere(large)
        snapshot = Snapshot(entry.revision, write_document(standing.state, standing.moment, elsewhere, log=weight.log))
        both = self._unstored({**blobs, **elsewhere.blobs})
        log = weight.log + len(snapshot.body) + _size(both) - _size(blobs)
        weight = Weight(len(snapshot.body), elsewhere.size, log=log)
        if patch and not decided and weight.state > self.max_bytes:
            raise TooLarge(f"the state would be larger than the {self.max_bytes:,} bytes that it may have")
        standing = Standing(standing.state, standing.moment)
        return Step(entry, standing, snapshot, both, weight, judged)

    def _unstored(self, blobs: dict[str, bytes]) -> Blobs:
        """Those of the large values that are not known to be stored."""
        if not blobs:
            return blobs
        new = [digest for digest in blobs if not any(digest in known for known in self.digests)]
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
            self.digests[0].update(step.blobs)
        self.head = replace(self.head, revision=entry.revision, expires=expires or self.head.expires, closed=closes)
        if entry.call_id is not None and entry.call_id[0] != OWN:
            self.calls[0].add(entry.call_id)
        self.judged = step.judged or self.judged
        self.settle(step.standing)

    def at_hand(self, revision: int) -> Standing | None:
        """Where the session stood at a revision, if that need not be read from the store."""
        return self._trail.get(revision)

    async def at(self, revision: int) -> Standing:
        """Where the session stood at a revision."""
        known = self.at_hand(revision)
        if known is not None:
            return known
        found, document = await self.reader.read(self.head.id, revision)
        self.digests[0].update(document.digests)
        return found

    async def refuse_pruned(self, revision: int) -> None:
        """Raise `UnknownRevision` if the session's past at a revision was pruned.

        Whoever prunes a session takes its lease. So while the fence stays what it was, what was whole is whole.
        """
        head, history = self.head, History(self.store)
        if revision > head.parent_revision:
            if self._whole_under != head.fence and await history.is_whole(head):
                self._whole_under = head.fence
            if self._whole_under == head.fence:
                return
        await history.refuse_pruned(head, revision)

    @property
    def is_light(self) -> bool:
        """Whether the state is so small that reading it is no matter."""
        return self._weight.state + self._weight.tail <= LIGHT

    def is_new(self, call_id: str) -> bool:
        """Whether it is known here that no entry has this call id."""
        if not self.all_calls_known:
            return False
        for known in self.calls:  # noqa: SIM110 - `all` would take twice as long, in every call
            if call_id in known:
                return False
        return True

    async def recorded(self, call_id: str) -> LogEntry | None:
        """The entry of a call that was committed before."""
        if self.is_new(call_id):
            return None
        return await History(self.store).find_call(self.head.id, call_id)

    def branch(self, head: Head, standing: Standing) -> Room:
        """A room for a fork of this session, which shares the state."""
        room = Room(self.reader, head, self.max_bytes, self.max_log)
        room.seeded = self.seeded
        room.calls = (set(), *self.calls[:FOREBEARS])
        room.all_calls_known = self.all_calls_known and len(self.calls) <= FOREBEARS
        if self.digests[0]:
            self.digests = (set(), *self.digests[:FOREBEARS])
        room.digests = (set(), *self.digests[1:])
        room._weight = replace(self._weight, log=0)
        room.settle(standing)
        return room


def _begins_anew(entry: LogEntry) -> bool:
    """Whether the state after an entry does not follow from the one before it and the patch."""
    return entry.kind == "rewind" or "schema" in entry.facts


def _size(blobs: Blobs) -> int:
    return sum(map(len, blobs.values())) if blobs else 0


def _is_small(weight: Weight) -> bool:
    """Whether the changes since the last snapshot are not yet worth another."""
    return weight.tail <= MIN_SNAPSHOT or weight.tail <= SNAPSHOT_RATIO * (weight.snapshot + weight.large // DIGESTING)


def new_room(
    reader: Reader,
    head: Head,
    state: State,
    moment: Moment,
    facts: dict[str, Any],
    max_bytes: int,
    start: Start | None = None,
    *,
    max_log: int = sys.maxsize,
) -> tuple[Room, Sequence[Entry], Snapshot, Blobs]:
    """A room for a session that is about to be created, with its first entry and snapshot, and its large values.

    `start` is what the state follows from, if that is stored.
    """
    room = Room(reader, head, max_bytes, max_log)
    large = room.store.large
    facts = {**facts, "schema": schema_facts(room.state_type)}
    if start is not None:
        facts["world"] = start.world
    body = write_body(facts, [], large)
    entry = Entry(head.revision, "seed", head.created, body.data)
    elsewhere = Elsewhere(large)
    log = len(body.data)
    snapshot = Snapshot(head.revision, write_document(state, moment, elsewhere, start, log=log))
    blobs = body.blobs | elsewhere.blobs
    log += len(snapshot.body) + _size(blobs)
    room._weight = Weight(len(snapshot.body) + (start.size if start else 0), elsewhere.size, log=log)
    if room._weight.state > max_bytes:
        raise TooLarge(f"the seeded state is larger than the {max_bytes:,} bytes that it may have")
    room.seeded = replace(entry, body=write_body(facts, []).data) if body.blobs else entry
    room.all_calls_known = True
    room.digests[0].update(blobs)
    room.settle(Standing(state, moment))
    return room, [entry], snapshot, blobs
