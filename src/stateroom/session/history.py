"""Reading a session's past from a store, without the author's classes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stateroom.errors import BadData, UnknownRevision, UnknownSession
from stateroom.session.journal import LogEntry, Stored, read_stored, write_body
from stateroom.session.moment import Moment
from stateroom.state import (
    Elsewhere,
    Large,
    Patch,
    State,
    apply,
    decode,
    encode,
    encode_json,
    encode_patch,
    large_in,
    put_in,
    schema_of,
)
from stateroom.store import Entry, Head, Loaded, Store

PAGE = 1000
"""How many entries are read from a store at a time."""


AT_ONCE = 16 * 2**20
"""Of large values in a log, no more bytes than this and one entry's are read at a time."""


class Weight(msgspec.Struct, frozen=True, gc=False):
    """How many bytes there are of a session."""

    snapshot: int = 0
    """Of its last snapshot."""
    large: int = 0
    """Of the large values in the state then, each as often as it is there; they are stored by themselves."""
    tail: int = 0
    """Of the entries since."""
    grown: int = 0
    """By which the state has grown since, at most."""
    log: int = 0
    """Of all that was ever stored for the session itself: entries, snapshots and large values; not of its parents."""

    @property
    def state(self) -> int:
        """Of the state, at most."""
        return self.snapshot + self.large + self.grown

    def after(self, written: int, growth: int, large: int) -> Weight:
        """The weight when so many more bytes of entries, and of large values, are there."""
        log = self.log + written + large
        return Weight(self.snapshot, self.large, self.tail + written, self.grown + growth, log)


NOWHERE = Head("", "", "", 0.0, 0.0, 0)


class Start(msgspec.Struct, frozen=True):
    """What a session's state follows from that is stored elsewhere: a world, which is a session of its own."""

    world: str
    """The session's id."""
    size: int
    """How many bytes a snapshot of it has."""
    changes: Patch = []
    """What has changed since."""


class Document(NamedTuple):
    """All that a session is at one revision, as plain data."""

    state: Any
    """None while only the start is known that it follows from."""
    moment: Moment
    weight: Weight = Weight()
    digests: frozenset[str] = frozenset()
    """Of large values that are known to be stored for the session, or for one that it was forked from."""
    head: Head = NOWHERE
    """The session's, when it was read."""
    last_kind: str | None = None
    """The kind of the last entry that was read; None if the snapshot says all."""
    version: int = 1
    """Of the schema of the state."""
    fingerprint: str | None = None
    """Of that schema; None if whoever wrote it did not know of any."""
    start: Start | None = None
    """What the state follows from, while it is not known itself."""


class _Logged(msgspec.Struct):
    """What a snapshot says of the log before it."""

    log: int = 0


_decode_logged = msgspec.msgpack.Decoder(_Logged).decode


def write_document(
    state: State, moment: Moment, elsewhere: Elsewhere, start: Start | None = None, *, log: int = 0
) -> bytes:
    """The body of a snapshot. With a start that the state follows from, only that is written of it.

    `log` is how many bytes were stored for the session before.
    """
    schema = schema_of(type(state))
    parts: dict[str, Any] = {
        "moment": msgspec.Raw(encode_json(moment.plain())),
        "schema": (schema.version, schema.fingerprint),
    }
    if log:
        parts["log"] = log
    if start is None:
        parts["state"] = msgspec.Raw(encode(state, elsewhere))
    else:
        parts["start"] = (start.world, start.size, msgspec.Raw(encode_patch(start.changes, elsewhere)))
    return msgspec.msgpack.encode(parts)


def read_document(body: bytes, large: list[Large] | None = None) -> Document:
    """What the body of a snapshot says. Its large values are missing; which these are is added to `large`."""
    data = decode(body, (), [] if large is None else large)
    try:
        version, fingerprint = data.get("schema", (1, None))
        moment = Moment.of_plain(data["moment"])
        if "start" not in data:
            return Document(data["state"], moment, version=version, fingerprint=fingerprint)
        world, size, changes = data["start"]
        start = Start(world, size, [tuple(operation) for operation in changes])
        return Document(None, moment, version=version, fingerprint=fingerprint, start=start)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadData(f"a stored snapshot cannot be read: {error!r}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A named revision of a session."""

    session: str
    revision: int
    name: str


class History:
    """The past of the sessions in a store. What a fork shares with its parent is read from the parent."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def document(self, session: str, revision: int | None = None) -> Document:
        """What the session was at a revision: the newest snapshot before it, and the changes since.

        Raises `UnknownRevision` if the session has not come so far, or if that part of its past was pruned.
        """
        return await self.completed(await self.outline(session, revision))

    async def outline(self, session: str, revision: int | None = None) -> Document:
        """The same, but if the state follows from a world, then that is not read."""
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
        log = _logged(loaded)
        while True:
            stored = [read_stored(entry) for entry in loaded.entries]
            tail += stored
            tail_bytes += sum(len(entry.body) for entry in loaded.entries)
            at, line = line_to([each.entry for each in stored], at)
            changes[:0] = line
            head, snapshot = loaded.head, loaded.snapshot
            if any("schema" in entry.facts for entry in line):  # it came with a snapshot, which has gone
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
        document = _changed(read_document(snapshot.body, large), changes)
        size, start = sum(value.size for value in large), document.start
        whole = len(snapshot.body) + (start.size if start else 0)
        log += sum(value.size for each in tail[: len(newest_entries)] for value in each.large)
        weight = Weight(whole, size, tail_bytes, sum(each.growth for each in tail), log)
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

    async def refuse_pruned(self, head: Head, revision: int) -> None:
        """Raise `UnknownRevision` if the session's past at a revision was pruned; quick, whatever the state's size."""
        while head.parent is not None and revision <= head.parent_revision:
            head = await self.store.head(head.parent)
        if revision == head.parent_revision + 1:  # this entry stays, and most often that is all it takes
            await self.outline(head.id, revision)
        elif revision < head.revision and not await self.store.entries(head.id, after=revision, until=revision + 1):
            raise await self._pruned(head, revision)

    async def _pruned(self, head: Head, at: int) -> UnknownRevision | BadData:
        """Why there is no snapshot to start from, up to a revision: it was pruned, or else the session is damaged."""
        after = max(at, head.parent_revision + 1)  # a session's first entry is never pruned
        entry = await anext(self.entries(head.id, after=after), None)
        oldest = head.revision if entry is None else entry.revision - 1
        snapshot = (await self.store.load(head.id, oldest)).snapshot
        if snapshot is None or snapshot.revision != oldest:
            return BadData(f"session {head.id!r} has no snapshot to start from")
        left = f"it has {oldest} to {head.revision}"
        return UnknownRevision(head.id, f"the past of session {head.id!r} before revision {oldest} was pruned; {left}")

    async def entries(
        self, session: str, *, after: int = 0, until: int | None = None, kinds: Container[str] | None = None
    ) -> AsyncIterator[LogEntry]:
        """The session's log in order, with what it shares with its parent; only revisions above `after`.

        With `kinds`, only entries of these kinds.
        """
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
                stop = min(start + PAGE, end)
                found = await self.store.entries(part.id, after=start, until=stop)
                for batch in _batches(entry for entry in found if kinds is None or entry.kind in kinds):
                    for entry in await self.whole(part, batch):
                        yield entry
                start = stop

    async def line(self, session: str, until: int, *, after: int = 0) -> list[LogEntry]:
        """The entries above a revision that lead to another; what a rewind has undone is not among them.

        Raises `UnknownRevision` if some of them were pruned.
        """
        start, line = line_to([entry async for entry in self.entries(session, after=after, until=until)], until)
        if start > after:
            await self.document(session, max(after, 1))  # this tells that the past was pruned
            raise BadData(f"session {session!r} has no entry {start}")
        return line

    async def find_call(self, session: str, call_id: str) -> LogEntry | None:
        """The entry with this call id in the session's log, or in what it shares with its parents."""
        within: int | None = None
        while True:
            found = await self.store.find_call(session, call_id)
            if found is not None and (within is None or found.revision <= within):
                return await self.read(session, found)
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
        found = await self.store.find_call(session, call_id)
        return None if found is None else await self.read(session, found)

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
        """What is stored for a session, or for one that it was forked from, under a digest."""
        values = await self._values(await self.store.head(session), {large})
        content: bytes = values[large]
        return content

    async def _values(self, head: Head, large: set[Large]) -> dict[Large, Any]:
        """Large values that are stored for a session, or for one that it was forked from."""
        session = head.id
        values: dict[Large, Any] = {}
        while missing := [value for value in large if value not in values]:
            found = await self.store.blobs(head.id, sorted({value.digest for value in missing}))
            for value in missing:
                content = found.get(value.digest)
                if content is not None and len(content) == value.size:
                    values[value] = value.value(content)
            if len(values) == len(large):
                break
            if head.parent is None:
                digest = next(value.digest for value in large if value not in values)
                raise BadData(f"session {session!r} is damaged: its large value {digest} is missing")
            head = await self.store.head(head.parent)
        return values


def _batches(entries: Iterable[Entry]) -> Iterator[list[Stored]]:
    """The entries, so many together that their large values can be in memory at once."""
    batch: list[Stored] = []
    size = 0
    for entry in entries:
        stored = read_stored(entry)
        batch.append(stored)
        size += sum(value.size for value in stored.large)
        if size >= AT_ONCE:
            yield batch
            batch, size = [], 0
    yield batch


def world_is_gone(session: str, world: str) -> BadData:
    """Why a session cannot be read."""
    return BadData(f"session {session!r} is damaged: it began in {world!r}, which is gone")


def _logged(loaded: Loaded) -> int:
    """How many bytes the session's own snapshots and entries have, without large values."""
    size = sum(len(entry.body) for entry in loaded.entries)
    if loaded.snapshot is None:
        return size
    try:
        return size + len(loaded.snapshot.body) + _decode_logged(loaded.snapshot.body).log
    except msgspec.DecodeError as error:
        raise BadData(f"a stored snapshot cannot be read: {error}") from error


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


def _changed(document: Document, changes: list[LogEntry]) -> Document:
    moment = document.moment
    for entry in changes:
        if entry.kind == "call" and document.start is not None:
            document.start.changes.extend(entry.patch)
        elif entry.kind == "call":
            apply(document.state, entry.patch)
        moment = followed(moment, entry)
    return document._replace(moment=moment)


def followed(moment: Moment, entry: LogEntry) -> Moment:
    """The moment after an entry. What happened outside is not undone by a rewind, which says what is pending."""
    if entry.kind == "rewind":
        return moment.rewound(tuple(entry.facts.get("pending", ())), entry.revision)
    return moment.following(entry.kind, entry.call_id, entry.facts)
