"""`memory://`: sessions in this process, for tests and for work that may be lost with it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Self, TypeVar

from msgspec.structs import replace

from stateroom.errors import DuplicateCall, StoreFull, StoreUnavailable, UnknownSession
from stateroom.store.contract import Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order, page_of
from stateroom.store.records import Blobs, Commit, Entry, Head, Loaded, Record, Snapshot, no_snapshot
from stateroom.store.url import parse_url

MAX_SESSIONS = 1_000_000

_Revised = TypeVar("_Revised", bound=Entry | Snapshot)
_age = attrgetter("age")
_revision = attrgetter("revision")


class _Session:
    """All that is kept of one session."""

    __slots__ = ("blobs", "calls", "entries", "forks", "head", "snapshots")

    def __init__(self, record: Record) -> None:
        self.head = record.head
        self.entries = list(record.entries)
        self.snapshots = list(record.snapshots)
        self.blobs = dict(record.blobs)
        self.calls: dict[str, Entry] = {}
        for entry in self.entries:
            self.add_call(entry)
        self.forks = 0

    def add_call(self, entry: Entry) -> None:
        if entry.call_id is None:
            return
        if entry.call_id in self.calls:
            raise DuplicateCall(self.head.id, entry.call_id)
        self.calls[entry.call_id] = entry

    def add_blobs(self, blobs: Blobs) -> None:
        for digest, body in blobs.items():
            self.blobs.setdefault(digest, body)

    def between(self, after: int, until: int) -> list[Entry]:
        first = bisect_right(self.entries, after, key=_revision)
        return self.entries[first : bisect_right(self.entries, until, key=_revision)]


class MemoryStore(Store):
    """Sessions in dicts. `memory://?max_sessions=N` bounds their number."""

    shared = False

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        self._kept: dict[str, _Session] | None = {}

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url, options={"max_sessions"})
        return cls(parts.whole_number("max_sessions", MAX_SESSIONS))

    async def close(self) -> None:
        self._kept = None

    @property
    def _sessions(self) -> dict[str, _Session]:
        if self._kept is None:
            raise StoreUnavailable("this store is closed")
        return self._kept

    def _find(self, session: str) -> _Session:
        try:
            return self._sessions[session]
        except KeyError:
            raise UnknownSession(session) from None

    async def put(self, record: Record, *, new: bool = False) -> None:
        head = record.head
        kept = self._sessions.get(head.id)
        if kept is None:
            self._add(_Session(record))
            return
        head.check_replaces(kept.head, new=new)
        entries, snapshots = _union(record.entries, kept.entries), _union(record.snapshots, kept.snapshots)
        whole = _Session(Record(head, entries, snapshots, kept.blobs))
        whole.add_blobs(record.blobs)
        whole.forks = kept.forks
        self._sessions[head.id] = whole

    def _add(self, kept: _Session) -> None:
        """Add a new session."""
        head = kept.head
        if len(self._sessions) >= self.max_sessions:
            raise StoreFull(f"this store is full ({self.max_sessions} sessions); sweep it or raise max_sessions")
        if head.parent is not None:
            parent = self._find(head.parent)
            head.check_parent(parent.head.revision)
            parent.forks += 1
        self._sessions[head.id] = kept

    async def append(self, commit: Commit) -> None:
        entry, kept = commit.entry, self._find(commit.session)
        kept.head.check_next(commit, duplicate=entry.call_id in kept.calls)
        kept.add_call(entry)
        kept.entries.append(entry)
        if commit.snapshot is not None:
            kept.snapshots.append(commit.snapshot)
        if commit.blobs:
            kept.add_blobs(commit.blobs)
        kept.head = kept.head.after(commit)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        kept = self._find(session)
        kept.head = kept.head.renewed(now, expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        kept = self._find(session)
        kept.head = kept.head.leased_to(holder, now, until)
        return kept.head

    async def release(self, session: str, holder: str) -> None:
        kept = self._find(session)
        kept.head = kept.head.released_by(holder)

    async def head(self, session: str) -> Head:
        return self._find(session).head

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        heads = (kept.head for kept in self._sessions.values())
        return page_of(filter(wanted.matches, heads), order, after, limit)

    async def pages(self, wanted: HeadFilter = ALL_SESSIONS, order: Order = "newest") -> AsyncIterator[list[Head]]:
        if heads := await self.heads(wanted, order=order, limit=len(self._sessions)):  # sorted only once
            yield heads

    async def children(self, session: str) -> list[Head]:
        self._find(session)
        return sorted((kept.head for kept in self._sessions.values() if kept.head.parent == session), key=_age)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        kept = self._find(session)
        until = kept.head.revision if at is None else at
        snapshot = next((each for each in reversed(kept.snapshots) if each.revision <= until), None)
        return Loaded(kept.head, snapshot, kept.between(snapshot.revision if snapshot else 0, until))

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        kept = self._find(session)
        return kept.between(after, kept.head.revision if until is None else until)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return self._find(session).calls.get(call_id)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        blobs = self._find(session).blobs
        return {digest: blobs[digest] for digest in (blobs if digests is None else digests) if digest in blobs}

    async def prune(self, session: str, below: int) -> int:
        kept = self._find(session)
        if not any(snapshot.revision == below for snapshot in kept.snapshots):
            raise no_snapshot(session, below)
        first = kept.head.parent_revision + 1
        stay = [entry for entry in kept.entries if entry.revision == first or entry.revision > below]
        gone = len(kept.entries) - len(stay)
        kept.entries = stay
        kept.snapshots = [snapshot for snapshot in kept.snapshots if snapshot.revision >= below]
        kept.calls = {entry.call_id: entry for entry in stay if entry.call_id is not None}
        return gone

    async def sweep(self, now: float) -> int:
        expired = [session for session, kept in self._sessions.items() if kept.head.expires <= now]
        swept = 0
        for session in reversed(expired):  # the youngest first, so forks before their parents
            if not self._sessions[session].forks:
                self._remove(session)
                swept += 1
        self._kept = dict(self._sessions)  # a dict that was large keeps its memory; a copy of it does not
        return swept

    async def delete(self, session: str) -> None:
        kept = self._find(session)
        if kept.forks:
            kept.head = replace(kept.head, expires=0.0)
        else:
            self._remove(session)

    def _remove(self, session: str) -> None:
        kept = self._sessions.pop(session)
        if kept.head.parent is not None:
            self._sessions[kept.head.parent].forks -= 1

    async def count(self, now: float) -> int:
        return sum(kept.head.status(now) == "live" for kept in self._sessions.values())


def _union(some: Sequence[_Revised], others: Sequence[_Revised]) -> list[_Revised]:
    """The parts of both, one for each revision, in order."""
    by_revision = {each.revision: each for each in (*some, *others)}
    return [by_revision[revision] for revision in sorted(by_revision)]
