"""Reading a session's past from a store, without the author's classes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from stateroom.errors import BadData, UnknownRevision
from stateroom.session.journal import LogEntry, read_entry
from stateroom.session.moment import Moment
from stateroom.state import apply, decode, encode
from stateroom.store import Entry, Head, Store

PAGE = 1000
"""How many entries are read from a store at a time."""


class Document(NamedTuple):
    """All that a session is at one revision, as plain data."""

    state: Any
    moment: Moment
    snapshot_bytes: int = 0
    """The size of the snapshot it was read from."""
    tail_bytes: int = 0
    """The size of the entries since."""


def write_document(state: Any, moment: Moment) -> bytes:
    """The body of a snapshot."""
    return encode({"state": state, "moment": list(moment)})


def _read_document(body: bytes) -> Document:
    data = decode(body)
    try:
        return Document(data["state"], Moment(*data["moment"]), len(body))
    except (TypeError, KeyError) as error:
        raise BadData(f"a stored snapshot cannot be read: {error!r}") from error


class History:
    """The past of the sessions in a store. What a fork shares with its parent is read from the parent."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def document(self, session: str, revision: int | None = None) -> Document:
        """What the session was at a revision: the newest snapshot before it, and the changes since."""
        loaded = await self.store.load(session, None if revision is None else max(0, min(revision, sys.maxsize)))
        at = _checked(loaded.head, revision)
        changes: list[LogEntry] = []
        weight = 0
        while True:
            weight += sum(len(entry.body) for entry in loaded.entries)
            at, line = _line([read_entry(entry) for entry in loaded.entries], at)
            changes[:0] = line
            if loaded.snapshot is not None and loaded.snapshot.revision <= at:
                break
            if loaded.snapshot is None and at <= loaded.head.parent_revision:
                if loaded.head.parent is None:
                    raise BadData(f"session {session!r} has no snapshot to start from")
                session = loaded.head.parent
            loaded = await self.store.load(session, at)
        document = _read_document(loaded.snapshot.body)
        return _changed(document, changes)._replace(tail_bytes=weight)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[LogEntry]:
        """The session's log in order, with what it shares with its parent; only revisions above `after`."""
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
                for stored in await self.store.entries(part.id, after=start, until=stop):
                    yield read_entry(stored)
                start = stop

    async def find_call(self, session: str, call_id: str) -> LogEntry | None:
        """The entry with this call id in the session's log, or in what it shares with its parents."""
        within: int | None = None
        while True:
            found = await self.store.find_call(session, call_id)
            if found is not None:
                return read_entry(found) if within is None or found.revision <= within else None
            head = await self.store.head(session)
            if head.parent is None:
                return None
            within = head.parent_revision if within is None else min(within, head.parent_revision)
            session = head.parent

    async def seed(self, session: str) -> Entry:
        """The entry that the session began with; a fork's is its parent's."""
        while (head := await self.store.head(session)).parent is not None:
            session = head.parent
        for entry in await self.store.entries(session, until=1):
            return entry
        raise BadData(f"session {session!r} has no seed")


def _checked(head: Head, revision: int | None) -> int:
    if revision is None:
        return head.revision
    if not 1 <= revision <= head.revision:
        raise UnknownRevision(head.id, f"session {head.id!r} has no revision {revision}; it has 1 to {head.revision}")
    return revision


def _line(entries: list[LogEntry], at: int) -> tuple[int, list[LogEntry]]:
    """The entries that lead to revision `at`, and the revision that they start from.

    A rewind leads back to an earlier entry; what lies between is not on the line.
    """
    line: list[LogEntry] = []
    for entry in reversed(entries):
        if entry.revision > at:
            continue
        if entry.kind == "rewind":
            at = entry.facts["to"]
        else:
            line.append(entry)
            at = entry.revision - 1
    line.reverse()
    return at, line


def _changed(document: Document, changes: list[LogEntry]) -> Document:
    state, moment = document.state, document.moment
    for entry in changes:
        if entry.kind == "call":
            apply(state, entry.patch)
            moment = moment.after(entry.facts.get("advance", 0.0))
    return document._replace(state=state, moment=moment)
