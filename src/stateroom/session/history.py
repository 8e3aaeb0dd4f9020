"""Reading a session's past from a store, without the author's classes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from msgspec.structs import replace

from stateroom.errors import BadData, SchemaChanged, UnknownRevision, UnknownSession
from stateroom.session.lifecycle import INITIAL, AgentStatus
from stateroom.session.log import (
    PATCHED,
    Document,
    LogEntry,
    Stored,
    Weight,
    changed,
    logged_bytes,
    read_document,
    read_entry,
    read_stored,
    world_is_gone,
    write_body,
)
from stateroom.state import (
    Event,
    Large,
    State,
    apply,
    digest_in_order,
    fold,
    large_in,
    put_in,
    read_event,
)
from stateroom.store import Entry, Head, Loaded, Store

S = TypeVar("S", bound=State)
T = TypeVar("T")

LARGE_LOAD_BYTES = 1 << 20
"""Bytes from which a thread reads what was loaded."""

ENTRIES_PER_PAGE = 1000
"""How many entries are read from a store at a time."""


ENTRIES_PER_PAGE_BACK = 32
"""How many entries are read at a time on the way back."""

BATCH_BYTES = 16 * 2**20
"""Of large values in a log, no more bytes than this and one entry's are read at a time."""


class StateDigest:
    """The digest of a state as plain data, by its fields: after a change, only the changed ones are read again."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._fields: dict[str, bytes] = {}

    def apply(self, patch: Iterable[Any]) -> None:
        """Change the state."""
        patch = [*patch]
        apply(self._state, patch)
        for _, path, *_ in patch:
            self._fields.pop(path[0], None)

    @property
    def value(self) -> str:
        """The digest, as a text of 32 characters."""
        self._fields |= {name: digest_in_order(self._state[name]) for name in self._state if name not in self._fields}
        return digest_in_order(self._fields).hex()


@dataclass(frozen=True)
class Checkpoint:
    """A named revision of a session."""

    session: str
    revision: int
    name: str


class History:
    """The past of the sessions in a store. A fork's shared past is read from its parent."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def document(self, session: str, revision: int | None = None) -> Document:
        """Load a session at a revision, from the newest snapshot before it and the changes since.

        Raises `UnknownRevision` if the session has not reached it, or if that part of its past was pruned.
        """
        return await self.completed(await self.outline(session, revision))

    async def outline(self, session: str, revision: int | None = None) -> Document:
        """Like `document`, but without reading the world of the state, if it has one."""
        at = None if revision is None else max(0, min(revision, sys.maxsize))
        return await self.outline_in(await self.store.load(session, at), revision)

    async def completed(self, document: Document) -> Document:
        """An outline with its state."""
        start = document.start
        if start is None:
            return document
        try:
            world = await self.document(start.world, 1)
        except UnknownSession:
            raise world_is_gone(document.head.id, start.world) from None
        apply(world.state, start.changes)
        return document._replace(state=world.state, start=None)

    async def outline_in(self, loaded: Loaded, revision: int | None = None) -> Document:
        """An outline, from what a store has loaded for that revision."""
        at = _checked(loaded.head, revision)
        newest, session = loaded.head, loaded.head.id
        newest_entries = loaded.entries
        last_kind = newest_entries[-1].kind if newest_entries else None
        changes: list[LogEntry] = []
        tail: list[Stored] = []
        tail_bytes = 0
        log = logged_bytes(loaded)
        while True:
            size = sum(len(entry.body) for entry in loaded.entries)
            stored, at, line, moved = await _aside(size, _read_line, loaded.entries, at)
            tail += stored
            tail_bytes += size
            changes[:0] = line
            head, snapshot = loaded.head, loaded.snapshot
            if moved:  # to another schema, which came with a snapshot that has gone
                raise await self._pruned(head, at)
            if snapshot is not None and snapshot.revision == at:
                break
            if snapshot is None and head.parent is not None and at <= head.parent_revision:
                session = head.parent
            elif snapshot is None:
                raise await self._pruned(head, at)
            elif snapshot.revision < at:
                raise BadData(f"session {session!r} has no entry {at}")
            loaded = await self.store.load(session, at)
        large: list[Large] = []
        document = await _aside(len(snapshot.body) + tail_bytes, _restored, snapshot.body, large, changes)
        size, start = sum(value.size for value in large), document.start
        whole = len(snapshot.body) + (start.size if start else 0)
        log += sum(value.size for each in tail[: len(newest_entries)] for value in each.large)
        weight = Weight(whole, size, tail_bytes, whole + size + sum(each.growth for each in tail), log)
        for each in tail:
            large += each.large
        if not large:
            return document._replace(weight=weight, head=newest, last_kind=last_kind)
        # Only now is it known which of them the state still has.
        known = document.state if start is None else start.changes
        values = await self._values(newest, set(large_in(known)))
        known = put_in(known, values)
        if start is None:
            document = document._replace(state=known)
        digests = frozenset(value.digest for value in large)
        return document._replace(weight=weight, digests=digests, head=newest, last_kind=last_kind)

    async def is_whole(self, head: Head) -> bool:
        """Whether nothing of the session's own log was pruned."""
        first = head.parent_revision + 1  # this entry is never pruned
        return head.revision <= first or bool(await self.store.entries(head.id, after=first, until=first + 1))

    async def ensure_kept(self, head: Head, revision: int) -> None:
        """Raise `UnknownRevision` if the session's past at a revision was pruned; quick, whatever the state's size."""
        while head.parent is not None and revision <= head.parent_revision:
            head = await self.store.head(head.parent)
        if revision == head.parent_revision + 1:  # this entry stays, and most often that is all it takes
            await self.outline(head.id, revision)
        elif revision < head.revision and not await self.store.entries(head.id, after=revision, until=revision + 1):
            raise await self._pruned(head, revision)

    async def _pruned(self, head: Head, at: int) -> UnknownRevision | BadData:
        """Why a revision has no snapshot to start from: its past was pruned, or the session is damaged."""
        after = max(at, head.parent_revision + 1)  # a session's first entry is never pruned
        entry = await anext(self.entries(head.id, after=after), None)
        oldest = head.revision if entry is None else entry.revision - 1
        snapshot = (await self.store.load(head.id, oldest)).snapshot
        if snapshot is None or snapshot.revision != oldest:
            return BadData(f"session {head.id!r} has no snapshot to start from")
        left = f"it has {oldest} to {head.revision}"
        return UnknownRevision(head.id, f"the past of session {head.id!r} before revision {oldest} was pruned; {left}")

    async def entries(
        self,
        session: str,
        *,
        after: int = 0,
        until: int | None = None,
        kinds: Container[str] | None = None,
        name: str | None = None,
        since: float = -inf,
        before: float = inf,
    ) -> AsyncIterator[LogEntry]:
        """Iterate over a session's log in order, its parent's part included, above the revision `after`.

        You can select entries of some kinds, of one name, and made at or after the time `since`, or `before` a time.
        Entries of other kinds and times are not decoded.
        """
        async for part, page in self._stored(session, after, until):
            wanted = (entry for entry in page if (kinds is None or entry.kind in kinds) and since <= entry.at < before)
            for batch in _batches(wanted, name):
                for entry in await self.whole(part, batch):
                    yield entry

    async def kinds(self, session: str, until: int) -> list[tuple[str, int, int]]:
        """The kinds of the entries up to a revision: the kind, first and last revision of neighbours of one kind.

        No entry is decoded. Revisions that are missing were pruned.
        """
        runs: list[tuple[str, int, int]] = []
        async for _, page in self._stored(session, until=until):
            await asyncio.sleep(0)  # a store in memory waits for nothing
            for entry in page:
                kind, first, last = runs[-1] if runs else ("", 0, 0)
                if (kind, last + 1) == (entry.kind, entry.revision):
                    runs[-1] = (kind, first, entry.revision)
                else:
                    runs.append((entry.kind, entry.revision, entry.revision))
        return runs

    async def _stored(
        self, session: str, after: int = 0, until: int | None = None
    ) -> AsyncIterator[tuple[Head, Sequence[Entry]]]:
        """The session's entries as they are stored, page by page, each with the session that wrote them."""
        head = await self.store.head(session)
        last = head.revision if until is None else min(until, head.revision)
        parts = [(head, last)]
        while head.parent is not None and head.parent_revision > after:
            last = min(last, head.parent_revision)
            head = await self.store.head(head.parent)
            parts.append((head, last))
        for part, end in reversed(parts):
            start = max(after, part.parent_revision)
            while start < end:
                stop = min(start + ENTRIES_PER_PAGE, end)
                yield part, await self.store.entries(part.id, after=start, until=stop)
                start = stop

    async def line(
        self, session: str, until: int | None = None, *, after: int = 0, kinds: Container[str] | None = None
    ) -> list[LogEntry]:
        """Return the entries above `after` that led to a revision, by default the newest, without undone ones.

        With `kinds`, only entries of these kinds. Raises `UnknownRevision` if some of them were pruned.
        """
        if until is None:
            until = (await self.store.head(session)).revision
        start, line = line_to([entry async for entry in self.entries(session, after=after, until=until)], until)
        if start > after:
            await self.document(session, max(after, 1))  # raises if the past was pruned
            raise BadData(f"session {session!r} has no entry {start}")
        return [entry for entry in line if kinds is None or entry.kind in kinds]

    async def digest(self, session: str, revision: int | None = None) -> str:
        """A digest of the state at a revision, by default the newest: equal states have equal digests.

        It costs O(the state): it is made when it is asked for.
        """
        return StateDigest((await self.document(session, revision)).state).value

    async def digests(self, session: str, kinds: Container[str]) -> list[tuple[LogEntry, str]]:
        """The entries of some kinds that lead to the newest revision, each with the digest of the state then.

        Each costs O(the fields that changed since the one before it).
        """
        digests: list[tuple[LogEntry, str]] = []
        state: StateDigest | None = None
        for entry in await self.line(session):
            if state is None or "schema" in entry.facts:
                state = StateDigest((await self.document(session, entry.revision)).state)
            elif entry.kind in PATCHED:
                state.apply(entry.patch)
            if entry.kind in kinds:
                digests.append((entry, state.value))
        return digests

    async def agent(self, head: Head, revision: int) -> AgentStatus:
        """The status of the agent at a revision; quick, whatever the state's size, if the agent spoke not long before.

        It comes from the last entry that has one; a rewind has that of the revision it leads back to.
        """
        at, entry = await self.agent_entry(head, revision)
        if entry is not None:
            return AgentStatus.of_plain(entry.facts["agent"])
        return INITIAL if at == 0 else (await self.outline(head.id, at)).progress.agent  # a snapshot has it

    async def agent_entry(self, head: Head, revision: int) -> tuple[int, LogEntry | None]:
        """The entry with the agent's status at a revision, and that entry's revision.

        None is at revision 0 if the agent has done nothing, and else at the one that was pruned.
        """
        async for at, entry in self.backwards(head, revision):
            if entry is None or "agent" in entry.facts:
                return at, entry
        return 0, None

    async def backwards(self, head: Head, revision: int) -> AsyncIterator[tuple[int, LogEntry | None]]:
        """The entries that lead to a revision, the newest first, each with its revision and without large values.

        None comes last, if what lies before was pruned. Rewinds are among them; what they have undone is not.
        """
        at, kept = revision, dict[int, Entry]()
        while at > 0:
            while head.parent is not None and at <= head.parent_revision:
                head = await self.store.head(head.parent)
            if at not in kept:
                start = max(at - ENTRIES_PER_PAGE_BACK, head.parent_revision)
                kept = {entry.revision: entry for entry in await self.store.entries(head.id, after=start, until=at)}
            entry = read_entry(kept[at]) if at in kept else None
            yield at, entry
            if entry is None:
                return
            at = entry.facts["to"] if entry.kind == "rewind" else at - 1

    async def find_call(self, session: str, call_id: str) -> LogEntry | None:
        """Return the entry with this call id in the session's log, its parents' part included."""
        within: int | None = None
        while True:
            entry = await self.store.find_call(session, call_id)
            if entry is not None and (within is None or entry.revision <= within):
                return await self.read(session, entry)
            head = await self.store.head(session)
            if head.parent is None:
                return None
            within = head.parent_revision if within is None else min(within, head.parent_revision)
            session = head.parent

    async def seed(self, head: Head, first: Sequence[Entry] = ()) -> Entry:
        """The entry that the session began with, nothing of it missing; a fork's is its parent's.

        `first` is what was read as the first of the session's own entries, if that was done.
        """
        while head.parent is not None:
            head, first = await self.store.head(head.parent), ()
        for entry in first or await self.store.entries(head.id, until=1):
            if not (stored := read_stored(entry)).large:
                return entry
            [whole] = await self.whole(head, [stored])
            return replace(entry, body=write_body(whole.facts, whole.patch).data)
        raise BadData(f"session {head.id!r} has no seed")

    async def find_own_call(self, session: str, call_id: str) -> LogEntry | None:
        """The session's own entry with this call id."""
        entry = await self.store.find_call(session, call_id)
        return None if entry is None else await self.read(session, entry)

    async def read(self, session: str, entry: Entry) -> LogEntry:
        """An entry of the session's own, understood."""
        stored = read_stored(entry)
        if not stored.large:
            return stored.entry
        [whole] = await self.whole(await self.store.head(session), [stored])
        return whole

    async def whole(self, head: Head, entries: Iterable[Stored]) -> list[LogEntry]:
        """Entries of a session's own, with their large values."""
        entries = list(entries)
        values = await self._values(head, {value for stored in entries for value in stored.large})
        return [stored.with_large(values) if stored.large else stored.entry for stored in entries]

    async def content(self, session: str, large: Large) -> bytes:
        """The value stored under a digest, for a session or for one that it was forked from."""
        values = await self._values(await self.store.head(session), {large})
        content: bytes = values[large]
        return content

    async def _values(self, head: Head, large: set[Large]) -> dict[Large, Any]:
        """Large values that are stored for a session, or for one that it was forked from."""
        session = head.id
        values: dict[Large, Any] = {}
        while missing := [value for value in large if value not in values]:
            contents = await self.store.blobs(head.id, sorted({value.digest for value in missing}))
            for value in missing:
                content = contents.get(value.digest)
                if content is not None and len(content) == value.size:
                    values[value] = value.value(content)
            if len(values) == len(large):
                break
            if head.parent is None:
                digest = next(value.digest for value in large if value not in values)
                raise BadData(f"session {session!r} is damaged: its large value {digest} is missing")
            head = await self.store.head(head.parent)
        return values


async def _aside(size: int, function: Callable[..., T], *given: Any) -> T:
    """Call a function; on a thread if it has much to read, to keep the event loop free."""
    return await asyncio.to_thread(function, *given) if size > LARGE_LOAD_BYTES else function(*given)


def _read_line(entries: Iterable[Entry], at: int) -> tuple[list[Stored], int, list[LogEntry], bool]:
    """Entries, those that lead to a revision, where these begin, and whether the schema changed among them."""
    stored = [read_stored(entry) for entry in entries]
    at, line = line_to([each.entry for each in stored], at)
    return stored, at, line, any("schema" in entry.facts for entry in line)


def _restored(snapshot: bytes, large: list[Large], changes: list[LogEntry]) -> Document:
    """A snapshot with the changes since; what it has that is large is added to a list."""
    return changed(read_document(snapshot, large), changes)


def _batches(entries: Iterable[Entry], name: str | None) -> Iterator[list[Stored]]:
    """The entries, of a name if one is given, in batches whose large values fit in memory."""
    batch: list[Stored] = []
    size = 0
    for entry in entries:
        stored = read_stored(entry)
        if name is not None and stored.entry.name != name:
            continue
        batch.append(stored)
        size += sum(value.size for value in stored.large)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _checked(head: Head, revision: int | None) -> int:
    if revision is None:
        return head.revision
    if not 1 <= revision <= head.revision:
        raise UnknownRevision(head.id, f"session {head.id!r} has no revision {revision}; it has 1 to {head.revision}")
    return revision


def line_to(entries: list[LogEntry], at: int) -> tuple[int, list[LogEntry]]:
    """The entries that lead to revision `at`, and the revision that they start from.

    A rewind leads back to an earlier entry; what lies between is not on the line.
    """
    kept = {entry.revision: entry for entry in entries}
    line: list[LogEntry] = []
    while (entry := kept.get(at)) is not None:
        line.append(entry)
        at = entry.facts["to"] if entry.kind == "rewind" else at - 1
    line.reverse()
    return at, line


@dataclass(frozen=True)
class EventRecord:
    """An event, with its revision of the session."""

    revision: int
    event: Event
    at: float = field(default=0.0, compare=False)
    """The time of the event, in seconds since 1970."""


async def occurred(
    store: Store, session: str, state_type: type[State], *, after: int, until: int
) -> AsyncIterator[EventRecord]:
    """Iterate over the events after a revision that led to another, in order, without undone ones.

    Raises `UnknownRevision` if some of them were pruned, and `SchemaChanged` if the current code cannot read one.
    """
    entries = [entry async for entry in History(store).entries(session, after=after, until=until)]
    start, line = line_to(entries, until)
    if start > after:
        raise UnknownRevision(
            session,
            f"the events of session {session!r} up to revision {start} were pruned; "
            f"read the later ones with events(after={start})",
        )
    for entry in line:
        for facts in entry.facts.get("events", ()):
            try:
                event = read_event(state_type, state_type.__appliers__, facts)
            except SchemaChanged as error:
                where = f"event {facts[0]!r} at revision {entry.revision} of session {session!r}"
                raise SchemaChanged(f"{where} cannot be read: {error}") from error.__cause__
            yield EventRecord(entry.revision, event, entry.at)


async def refold(seeded: S, events: AsyncIterable[EventRecord]) -> S:
    """Apply events to a seeded state with the current classes, and return the resulting state."""
    state, call, revision = seeded, list[Event](), 0
    async for each in events:
        if each.revision != revision:
            state, call, revision = fold(state, call), [], each.revision
        call.append(each.event)
    return fold(state, call)
