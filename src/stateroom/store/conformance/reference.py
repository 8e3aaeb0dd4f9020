"""What the conformance suite compares a store with."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, StateroomError, StoreError, UnknownRevision, UnknownSession
from stateroom.store.contract import Entry, Head, Loaded, Snapshot


class _Session:
    """One session of the model."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.entries: dict[int, Entry] = {}
        self.snapshots: dict[int, Snapshot] = {}


class Reference:
    """A store at its plainest: each answer is worked out anew from everything that is kept."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}

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

    def create(self, head: Head, entries: list[Entry], snapshot: Snapshot | None) -> None:
        if head.id in self.sessions:
            raise StoreError
        if head.parent is not None and head.parent_revision > self.find(head.parent).head.revision:
            raise UnknownRevision(head.parent, "")
        self.sessions[head.id] = made = _Session(head)
        made.entries = {entry.revision: entry for entry in entries}
        if snapshot is not None:
            made.snapshots[snapshot.revision] = snapshot

    def append(
        self, session: str, entry: Entry, expires: float | None, snapshot: Snapshot | None, closes: bool
    ) -> None:
        found = self.find(session)
        found.head.check_live(entry.at)
        if entry.call_id is not None and self.find_call(session, entry.call_id):
            raise DuplicateCall(session, entry.call_id)
        if found.head.revision + 1 != entry.revision:
            raise Conflict(session, entry.revision - 1)
        found.entries[entry.revision] = entry
        if snapshot is not None:
            found.snapshots[entry.revision] = snapshot
        found.head = replace(found.head, revision=entry.revision, expires=expires or found.head.expires, closed=closes)

    def touch(self, session: str, now: float, expires: float) -> None:
        found = self.find(session)
        found.head.check_live(now)
        found.head = replace(found.head, expires=expires)

    def head(self, session: str) -> Head:
        return self.find(session).head

    def heads(self, environment: str | None) -> list[Head]:
        heads = [found.head for found in self.sessions.values() if environment in (None, found.head.environment)]
        return sorted(heads, key=lambda head: (head.created, head.id), reverse=True)

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
