"""What the conformance suite compares a store with."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    SessionLeased,
    StateroomError,
    StoreError,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.conformance.creation import outcome
from stateroom.store.contract import Blobs, Commit, Entry, Head, Loaded, Record, Snapshot, Store


class _Session:
    """One session of the model."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.entries: dict[int, Entry] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.blobs: dict[str, bytes] = {}

    def add(self, entries: list[Entry], snapshots: list[Snapshot], blobs: Blobs) -> None:
        self.entries.update({entry.revision: entry for entry in entries})
        self.snapshots.update({snapshot.revision: snapshot for snapshot in snapshots})
        self.blobs.update(blobs)


class Reference:
    """A store at its plainest: each answer is worked out anew from everything that is kept."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        self.records: list[Record] = []
        """Sessions as they were when they were exported."""

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        """What the call returns, or the class of the error it raises."""
        try:
            return getattr(self, name)(**arguments)
        except StateroomError as error:
            return type(error)

    def find(self, session: str) -> _Session:
        if session not in self.sessions:
            raise UnknownSession(session)
        return self.sessions[session]

    def create(self, head: Head, entries: list[Entry], snapshot: Snapshot | None, blobs: Blobs) -> None:
        if head.id in self.sessions:
            raise StoreError
        self.check_parent(head)
        self.sessions[head.id] = made = _Session(head)
        made.add(entries, [snapshot] if snapshot else [], blobs)

    def check_parent(self, head: Head) -> None:
        if head.parent is not None and head.parent_revision > self.find(head.parent).head.revision:
            raise UnknownRevision(head.parent, "")

    def append(self, commit: Commit) -> None:
        session, entry = commit.session, commit.entry
        found = self.find(session)
        found.head.check_live(entry.at)
        if entry.call_id is not None and self.find_call(session, entry.call_id):
            raise DuplicateCall(session, entry.call_id)
        if (found.head.revision + 1, found.head.fence) != (entry.revision, commit.fence):
            raise Conflict(session, entry.revision - 1)
        found.add([entry], [commit.snapshot] if commit.snapshot else [], commit.blobs)
        expires = found.head.expires if commit.expires is None else commit.expires
        found.head = replace(found.head, revision=entry.revision, expires=expires, closed=commit.closes)

    def touch(self, session: str, now: float, expires: float) -> None:
        found = self.find(session)
        found.head.check_live(now)
        found.head = replace(found.head, expires=expires)

    def lease(self, session: str, holder: str, now: float, until: float) -> Head:
        found = self.find(session)
        if found.head.holder != holder:
            if found.head.holder is not None and now < found.head.leased_until:
                raise SessionLeased(session)
            found.head = replace(found.head, holder=holder, fence=found.head.fence + 1)
        found.head = replace(found.head, leased_until=until)
        return found.head

    def release(self, session: str, holder: str) -> None:
        found = self.find(session)
        if found.head.holder == holder:
            found.head = replace(found.head, holder=None, leased_until=0.0)

    def head(self, session: str) -> Head:
        return self.find(session).head

    def heads(self, environment: str | None) -> list[Head]:
        heads = [found.head for found in self.sessions.values() if environment in (None, found.head.environment)]
        return sorted(heads, key=lambda head: (head.created, head.id), reverse=True)

    def children(self, session: str) -> list[Head]:
        self.find(session)
        return [head for head in reversed(self.heads(None)) if head.parent == session]

    def load(self, session: str, at: int | None) -> Loaded:
        found = self.find(session)
        until = found.head.revision if at is None else at
        base = max((revision for revision in found.snapshots if revision <= until), default=0)
        return Loaded(found.head, found.snapshots.get(base), self.entries(session, base, until))

    def entries(self, session: str, after: int, until: int | None) -> list[Entry]:
        found = self.find(session)
        last = found.head.revision if until is None else until
        return [found.entries[revision] for revision in sorted(found.entries) if after < revision <= last]

    def find_call(self, session: str, call_id: str) -> Entry | None:
        return next((entry for entry in self.find(session).entries.values() if entry.call_id == call_id), None)

    def blobs(self, session: str, digests: list[str]) -> dict[str, bytes]:
        found = self.find(session)
        return {digest: found.blobs[digest] for digest in digests if digest in found.blobs}

    def delete(self, session: str) -> None:
        found = self.find(session)
        if any(other.head.parent == session for other in self.sessions.values()):
            found.head = replace(found.head, expires=0.0)
        else:
            del self.sessions[session]

    def count(self, now: float) -> int:
        return sum(found.head.expires > now and not found.head.closed for found in self.sessions.values())

    def sweep(self, now: float) -> int:
        needed = {session for session, found in self.sessions.items() if found.head.expires > now}
        for session in [*needed]:
            parent = self.sessions[session].head.parent
            while parent is not None:
                needed.add(parent)
                parent = self.sessions[parent].head.parent
        swept = len(self.sessions) - len(needed)
        self.sessions = {session: self.sessions[session] for session in self.sessions if session in needed}
        return swept

    def look(self, session: str) -> Record:
        """All of a session."""
        found = self.find(session)
        entries = [found.entries[revision] for revision in sorted(found.entries)]
        snapshots = [found.snapshots[revision] for revision in sorted(found.snapshots)]
        return Record(found.head, entries, snapshots, dict(found.blobs))

    def export(self, session: str) -> Record:
        self.records.append(self.look(session))
        return self.records[-1]

    def restore(self, record: Record) -> None:
        self.check_parent(record.head)
        kept = self.sessions.setdefault(record.head.id, _Session(record.head))
        if kept.head.created != record.head.created or kept.head.revision > record.head.revision:
            raise StoreError
        kept.head = record.head
        kept.add(record.entries, record.snapshots, record.blobs)

    def prune(self, session: str, below: int) -> int:
        found = self.find(session)
        if below not in found.snapshots:
            raise UnknownRevision(session, "")
        first = min(found.entries, default=0)
        goes = [revision for revision in found.entries if first < revision <= below]
        for revision in goes:
            del found.entries[revision]
        found.snapshots = {revision: kept for revision, kept in found.snapshots.items() if revision >= below}
        # Whether a restore brings back what was pruned, the contract does not say.
        self.records = [record for record in self.records if record.head.id != session]
        return len(goes)

    def size(self, session: str) -> int:
        return len(self.find(session).entries)

    def orphans(self) -> list[str]:
        return []

    def vacuum(self) -> None:
        pass

    def can_tell(self, record: Record) -> bool:
        """Whether there is at most one reason to refuse a record; of two, the contract does not say which is told."""
        return record.head.id not in self.sessions or self.answer("check_parent", {"head": record.head}) is None


async def ask(store: Store, name: str, arguments: dict[str, Any]) -> Any:
    """What a store answers, so that it can be compared with what the model answers."""
    got: Any = await outcome(getattr(store, "export" if name == "look" else name)(**arguments))
    if name in ("heads", "children") and isinstance(got, list):  # those of one age may be listed in any order
        got.sort(key=lambda head: (head.created, head.id), reverse=name == "heads")
    if name == "size" and not isinstance(got, type):  # how many bytes they are depends on the store
        return got.rows
    return got


async def compare(store: Store, model: Reference) -> None:
    """Compare all that there is."""
    listed = await ask(store, "heads", {"environment": None, "limit": 1 + len(model.sessions)})
    assert listed == model.heads(None)
    for session, found in model.sessions.items():
        assert await store.export(session) == model.look(session)
        for at in (None, *range(found.head.revision + 1)):
            assert await store.load(session, at) == model.load(session, at), f"{session} at {at}"
    sizes = await store.sizes()
    kept = model.sessions.values()
    for kind, filled in (
        ("sessions", bool(kept)),
        ("entries", any(found.entries for found in kept)),
        ("snapshots", any(found.snapshots for found in kept)),
        ("blobs", any(found.blobs for found in kept)),
    ):
        assert (sizes[kind].rows > 0) == filled, f"{kind}: {sizes[kind]}"
    assert await store.orphans() == []
