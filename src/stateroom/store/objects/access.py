"""Single sessions: reading, changing and swapping a head object, and reading its segments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from stateroom.errors import BadData, StateroomError, StoreUnavailable, UnknownSession
from stateroom.lru import LRU
from stateroom.pauses import Pauses
from stateroom.store.objects import layout
from stateroom.store.objects.backend import Missing, Moved, ObjectBackend, Version
from stateroom.store.objects.layout import Gone, LogIndex, LogRun, Root, Segment
from stateroom.store.records import DAMAGE, Entry, Head, Loaded, Record, Snapshot, damaged

P = ParamSpec("P")
T = TypeVar("T")

MIN_INDEXED_BYTES = 64 * 1024
"""Segments of at least this size are read by their index if only some entries are wanted."""
MAX_SESSIONS_CACHED = 1_000
"""Number of sessions cached, so that an append to one of them need not read it first."""
ATTEMPTS = 100
"""Attempts per change while other processes are quicker."""
PAUSES = Pauses(first=0.004, longest=0.04)
"""After the second attempt and those that follow."""

Part = tuple[str, bytes]
"""The short name of a segment or blob, and its content."""


class SessionView(NamedTuple):
    """A session as it was when its head was last read or written."""

    root: Root
    version: Version
    indexes: dict[str, LogIndex]
    """Indexes of its segments that have been read; they never change."""


class SessionChange(NamedTuple):
    """A change of a session: its new root, objects to write before it, and objects to remove after it."""

    root: Root
    parts: Sequence[Part] = ()
    dead: Sequence[str] = ()
    indexes: dict[str, LogIndex] = {}
    """Indexes of the segments among the parts."""


class Access:
    """Reads and changes the sessions of a backend."""

    def __init__(self, backend: ObjectBackend) -> None:
        self.backend = backend
        self._views: LRU[str, SessionView] = LRU(MAX_SESSIONS_CACHED)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # Heads.

    def turn(self, session: str) -> asyncio.Lock:
        """A lock: its holder is the only one in this process that changes the session."""
        lock = self._turns.get(session)
        if lock is None:
            lock = self._turns[session] = asyncio.Lock()
        return lock

    async def fetch(self, session: str) -> SessionView:
        """The session as it is now."""
        known = self._views.get(session)
        name = layout.head_name(layout.key_of(session))
        try:
            stored = await (self.backend.read_changed(name, known.version) if known else self.backend.read(name))
        except Missing:
            raise self._unknown(session) from None
        if stored is None and known is not None:
            return known
        assert stored is not None
        content = layout.decode_head(stored.data, name)
        if isinstance(content, Gone):
            raise self._unknown(session)
        return self.remember(content, stored.version)

    def _unknown(self, session: str) -> UnknownSession:
        self._views.pop(session, None)
        return UnknownSession(session)

    def remember(self, root: Root, version: Version, indexes: dict[str, LogIndex] | None = None) -> SessionView:
        """Cache a session as it is now, for the next change."""
        session = root.head.id
        known = self._views.get(session)
        have = {**(known.indexes if known else {}), **(indexes or {})}
        of_segments = {segment.name: have[segment.name] for segment in root.segments if segment.name in have}
        return self._views.keep(session, SessionView(root, version, of_segments))

    async def look(self, key: str) -> tuple[Root | Gone | None, Version]:
        """The head object of a key, if there is one."""
        name = layout.head_name(key)
        try:
            stored = await self.backend.read(name)
        except Missing:
            return None, None
        return layout.decode_head(stored.data, name), stored.version

    async def swap(self, key: str, content: Root | Gone, version: Version | None) -> tuple[Root | Gone, Version]:
        """Replace a head object, or nothing; the new one with its stamp, and its version. Else raises `Moved`."""
        stamped, data = layout.encode_head(content)
        return stamped, await self.backend.swap(layout.head_name(key), data, version)

    # Changes.

    async def change(self, session: str, plan: Callable[[SessionView], Awaitable[SessionChange | None]]) -> Root:
        """Change a session as `plan` says, which may refuse, or return None for no change.

        The plan is first made for the cached session. If it is a change, the swap shows whether the cache is up to
        date; a refusal, or no change, counts only for the session as it is now.
        """
        async with self.turn(session):
            view = self._views.get(session)
            fresh = view is None
            missing = b""
            for attempt in range(ATTEMPTS):
                if view is None:
                    view, fresh = await self.fetch(session), True
                try:
                    change = await plan(view)
                    if change is None and fresh:
                        return view.root
                    done = await self._commit(view, change) if change is not None else None
                    if done is not None:
                        return done
                except Missing as error:  # a segment was merged since; if not, it is lost
                    if fresh and missing == view.root.stamp:
                        raise self._lost(session, error) from None
                    missing = view.root.stamp
                except StoreUnavailable:
                    raise
                except StateroomError:
                    if fresh:
                        raise
                view = None
                await asyncio.sleep(PAUSES.after(attempt - 1))
        raise StoreUnavailable(f"{self.backend.url}: too many concurrent changes to session {session!r}; try again")

    async def change_head(self, session: str, change: Callable[[Head], Head]) -> Root:
        """Change the head of a session alone; `change` gives the same head if there is nothing to change."""

        async def plan(view: SessionView) -> SessionChange | None:
            head = change(view.root.head)
            return None if head is view.root.head else SessionChange(view.root.changed(head=head))

        return await self.change(session, plan)

    async def _commit(self, view: SessionView, change: SessionChange) -> Root | None:
        """Write a change; None if the session has changed since, and nothing is written."""
        session, folder = change.root.head.id, change.root.folder
        await self.write((f"{folder}/{name}", data) for name, data in change.parts)
        try:
            root, version = await self.swap(layout.key_of(session), change.root, view.version)
        except Moved:
            await self.discard(f"{folder}/{name}" for name, _ in change.parts)
            return None
        except BaseException:  # it may have been written
            self._views.pop(session, None)
            raise
        assert isinstance(root, Root)
        self.remember(root, version, {**view.indexes, **change.indexes})
        await self.discard(f"{folder}/{name}" for name in change.dead)
        return root

    async def write(self, objects: Iterable[Part]) -> None:
        """Write objects under unique names, all or none."""
        objects = list(objects)
        done = await asyncio.gather(*(self.backend.write(*each) for each in objects), return_exceptions=True)
        failed = [error for error in done if isinstance(error, BaseException)]
        if failed:
            await self.discard(name for name, _ in objects)
            raise failed[0]

    async def discard(self, names: Iterable[str]) -> None:
        """Remove objects that nothing refers to; a vacuum finds those that stay."""
        names = list(names)
        if names:
            with suppress(StoreUnavailable):
                await self.backend.remove(names)

    async def add_run(self, view: SessionView, run: LogRun) -> SessionChange:
        """The session with one more run: in its head while that is small, else in a segment, with smaller ones."""
        root = view.root
        tail = layout.join([root.tail, run])
        if tail.weight <= layout.TAIL_BYTES:
            return SessionChange(root.changed(tail=tail))
        merged = layout.count_merged(root.segments, len(tail.records))
        stay, merge = root.segments[: len(root.segments) - merged], root.segments[len(root.segments) - merged :]
        whole = layout.join([*await asyncio.gather(*(self.read_run(view, segment) for segment in merge)), tail])
        segment, data = layout.make_segment(layout.new_name(), whole)
        return SessionChange(
            root.changed(segments=(*stay, segment), tail=LogRun()),
            parts=[(segment.name, data)],
            dead=[each.name for each in merge],
            indexes={segment.name: whole.index},
        )

    # Segments.

    async def read(self, session: str, reader: Callable[[SessionView], Awaitable[T]]) -> T:
        """Call `reader` with a session as it is now; again if a change has removed a segment meanwhile."""
        missing = b""
        while True:
            view = await self.fetch(session)
            try:
                return await reader(view)
            except Missing as error:
                if missing == view.root.stamp:
                    raise self._lost(session, error) from None
                missing = view.root.stamp
            except (BadData, *DAMAGE) as error:
                raise damaged(session, error) from error

    def _lost(self, session: str, error: Missing) -> BadData:
        return BadData(f"{self.backend.url}: session {session!r} is damaged: an object is missing: {error}")

    async def read_part(self, view: SessionView, name: str, start: int, end: int) -> bytes:
        """Some bytes of a segment or blob."""
        if end <= start:
            return b""
        return await self.backend.read_part(f"{view.root.folder}/{name}", start, end)

    async def read_run(self, view: SessionView, segment: Segment) -> LogRun:
        """A segment, whole."""
        data = await self.read_part(view, segment.name, 0, segment.size + segment.index_size)
        index = view.indexes[segment.name] = layout.decode_index(data[segment.size :])
        return LogRun(data[: segment.size], index)

    async def read_index(self, view: SessionView, segment: Segment) -> LogIndex:
        """The index of a segment."""
        index = view.indexes.get(segment.name)
        if index is None:
            data = await self.read_part(view, segment.name, segment.size, segment.size + segment.index_size)
            index = view.indexes[segment.name] = layout.decode_index(data)
        return index

    async def read_indexes(self, view: SessionView) -> list[LogIndex]:
        """The indexes of all segments and the tail, the oldest first."""
        root = view.root
        indexes = await asyncio.gather(*(self.read_index(view, segment) for segment in root.segments))
        return [*indexes, root.tail.index]

    # Logs.

    async def read_entries(self, view: SessionView, after: int, until: int | None) -> list[Entry]:
        """The entries above a revision, up to another or the newest."""
        until = view.root.head.revision if until is None else until
        pieces = await asyncio.gather(*self._pieces(view, view.root.segments, after, until))
        items = layout.read_records(b"".join([*pieces, view.root.tail.records]))
        return [item for item in items if isinstance(item, Entry) and after < item.revision <= until]

    async def load(self, view: SessionView, until: int | None) -> Loaded:
        """The newest snapshot up to a revision, or the newest of all, and the entries from there."""
        root = view.root
        until = root.head.revision if until is None else until
        in_tail = root.tail.index.newest_snapshot(until)
        if in_tail is not None:
            revision, position = in_tail
            records = root.tail.records[position:]
        else:
            newest = await self._find_snapshot(view, until)
            if newest is None:
                return Loaded(root.head, None, await self.read_entries(view, 0, until))
            number, revision, position = newest
            segment = root.segments[number]
            end = segment.size
            if segment.last > until:
                _, end = (await self.read_index(view, segment)).span(revision, until, segment.size)
            later = self._pieces(view, root.segments[number + 1 :], revision, until)
            pieces = await asyncio.gather(self.read_part(view, segment.name, position, end), *later)
            records = b"".join([*pieces, root.tail.records])
        items = list(layout.read_records(records))
        snapshot = next((item for item in items if isinstance(item, Snapshot)), None)
        if snapshot is None:
            raise BadData(f"the snapshot at revision {revision} is missing")
        entries = [item for item in items if isinstance(item, Entry) and revision < item.revision <= until]
        return Loaded(root.head, snapshot, entries)

    async def _find_snapshot(self, view: SessionView, until: int) -> tuple[int, int, int] | None:
        """The newest snapshot up to a revision: the number of its segment, its revision and position."""
        for number, segment in reversed(list(enumerate(view.root.segments))):
            if not segment.snapshots or segment.oldest_snapshot > until:
                continue
            if segment.newest_snapshot <= until:
                return number, segment.newest_snapshot, segment.newest_position
            newest = (await self.read_index(view, segment)).newest_snapshot(until)
            return (number, *newest) if newest else None
        return None

    def _pieces(
        self, view: SessionView, segments: tuple[Segment, ...], after: int, until: int
    ) -> list[Coroutine[Any, Any, bytes]]:
        """Reads of the segments, or parts of them, that have entries between two revisions."""
        wanted = [
            segment for segment in segments if segment.entries and segment.last > after and segment.first <= until
        ]
        return [self._read_piece(view, segment, after, until) for segment in wanted]

    async def _read_piece(self, view: SessionView, segment: Segment, after: int, until: int) -> bytes:
        start, end = 0, segment.size
        if segment.size >= MIN_INDEXED_BYTES and (segment.first <= after or segment.last > until):
            start, end = (await self.read_index(view, segment)).span(after, until, segment.size)
        return await self.read_part(view, segment.name, start, end)

    async def find_call(self, view: SessionView, call_id: str) -> int | None:
        """The revision of a call, if there is one."""
        for index in reversed(await self.read_indexes(view)):
            if call_id in index.calls:
                return index.calls[call_id]
        return None

    async def find_blobs(self, view: SessionView) -> dict[str, tuple[str, int]]:
        """The names and sizes of all blobs, by their digests."""
        indexes = await self.read_indexes(view)
        return {blob.digest: (blob.name, blob.size) for index in indexes for blob in index.blobs}

    async def read_blobs(self, view: SessionView, digests: Iterable[str] | None = None) -> dict[str, bytes]:
        """The blobs with these digests that exist, or all."""
        there = await self.find_blobs(view)
        chosen = there.keys() if digests is None else {*digests}
        wanted = [digest for digest in there if digest in chosen]
        bodies = await asyncio.gather(*(self.read_part(view, there[each][0], 0, there[each][1]) for each in wanted))
        return dict(zip(wanted, bodies, strict=True))

    async def read_log(self, view: SessionView) -> tuple[list[Entry], list[Snapshot]]:
        """All entries and all snapshots."""
        runs = await asyncio.gather(*(self.read_run(view, segment) for segment in view.root.segments))
        items = list(layout.read_records(layout.join([*runs, view.root.tail]).records))
        entries = [item for item in items if isinstance(item, Entry)]
        return entries, [item for item in items if isinstance(item, Snapshot)]

    async def read_all(self, view: SessionView) -> Record:
        """All of a session."""
        entries, snapshots = await self.read_log(view)
        return Record(view.root.head, entries, snapshots, await self.read_blobs(view))
