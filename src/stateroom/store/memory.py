"""`memory://`: sessions in this process, for tests and for work that may be lost with it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Self

from msgspec.structs import replace

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.contract import Entry, Head, Loaded, Snapshot, Store
from stateroom.store.url import parse_url

MAX_SESSIONS = 1_000_000


class _Record:
    """All that is kept of one session."""

    __slots__ = ("calls", "children", "entries", "head", "snapshots")

    def __init__(self, head: Head, entries: Sequence[Entry], snapshot: Snapshot | None) -> None:
        self.head = head
        self.entries = list(entries)
        self.snapshots = [snapshot] if snapshot else []
        self.calls: dict[str, Entry] = {}
        for entry in entries:
            self.add_call(entry)
        self.children = 0

    def add_call(self, entry: Entry) -> None:
        if entry.call_id is None:
            return
        if entry.call_id in self.calls:
            raise DuplicateCall(self.head.id, entry.call_id)
        self.calls[entry.call_id] = entry


class MemoryStore(Store):
    """Sessions in dicts. `memory://?max_sessions=N` bounds their number."""

    shared = False

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        self._kept: dict[str, _Record] | None = {}

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url, options={"max_sessions"})
        return cls(parts.whole_number("max_sessions", MAX_SESSIONS))

    async def close(self) -> None:
        self._kept = None

    @property
    def _records(self) -> dict[str, _Record]:
        if self._kept is None:
            raise StoreUnavailable("this store is closed")
        return self._kept

    def _record(self, session: str) -> _Record:
        try:
            return self._records[session]
        except KeyError:
            raise UnknownSession(session) from None

    async def create(self, head: Head, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        if head.id in self._records:
            raise StoreError(f"there is a session {head.id!r} already")
        if len(self._records) >= self.max_sessions:
            raise StoreFull(f"this store is full: it holds {self.max_sessions} sessions; sweep, or raise max_sessions")
        record = _Record(head, entries, snapshot)
        if head.parent is not None:
            parent = self._record(head.parent)
            if head.parent_revision > parent.head.revision:
                raise UnknownRevision(head.parent, f"session {head.parent!r} has no revision {head.parent_revision}")
            parent.children += 1
        self._records[head.id] = record

    async def append(
        self,
        session: str,
        entry: Entry,
        *,
        expires: float | None,
        snapshot: Snapshot | None = None,
        closes: bool = False,
    ) -> None:
        record = self._record(session)
        head = record.head
        head.check_live(entry.at)
        if entry.call_id is not None and entry.call_id in record.calls:
            raise DuplicateCall(session, entry.call_id)
        if head.revision != entry.revision - 1:
            raise Conflict(session, entry.revision - 1)
        record.add_call(entry)
        record.entries.append(entry)
        if snapshot is not None:
            record.snapshots.append(snapshot)
        record.head = replace(head, revision=entry.revision, expires=expires or head.expires, closed=closes)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        record = self._record(session)
        record.head.check_live(now)
        record.head = replace(record.head, expires=expires)

    async def head(self, session: str) -> Head:
        return self._record(session).head

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        found = (
            record.head
            for record in self._records.values()
            if environment in (None, record.head.environment)
            and (before is None or (record.head.created, record.head.id) < (before.created, before.id))
        )
        return nlargest(limit, found, key=lambda head: (head.created, head.id))

    async def load(self, session: str, at: int | None = None) -> Loaded:
        record = self._record(session)
        until = record.head.revision if at is None else at
        snapshot = next((kept for kept in reversed(record.snapshots) if kept.revision <= until), None)
        return Loaded(record.head, snapshot, self._between(record, snapshot.revision if snapshot else 0, until))

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        record = self._record(session)
        return self._between(record, after, record.head.revision if until is None else until)

    @staticmethod
    def _between(record: _Record, after: int, until: int) -> list[Entry]:
        first = record.head.parent_revision
        return record.entries[max(0, after - first) : max(0, until - first)]

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return self._record(session).calls.get(call_id)

    async def sweep(self, now: float) -> int:
        expired = [session for session, record in self._records.items() if record.head.expires <= now]
        swept = 0
        for session in reversed(expired):  # the youngest first, so forks before their parents
            if not self._records[session].children:
                self._remove(session)
                swept += 1
        self._kept = dict(self._records)  # a dict that has been large stays so; its copy does not
        return swept

    async def delete(self, session: str) -> None:
        record = self._record(session)
        if record.children:
            record.head = replace(record.head, expires=0.0)
        else:
            self._remove(session)

    def _remove(self, session: str) -> None:
        record = self._records.pop(session)
        if record.head.parent is not None:
            self._records[record.head.parent].children -= 1

    async def count(self, now: float) -> int:
        heads = (record.head for record in self._records.values())
        return sum(not head.closed and head.expires > now for head in heads)
