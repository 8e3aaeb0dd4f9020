"""Sessions as rows of an SQLite file: every question and every change, each inside a transaction of the caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any

from stateroom.errors import BadData, DuplicateCall, SessionLeased, StoreError, UnknownRevision, UnknownSession
from stateroom.store.contract import DAMAGE, Blobs, Entry, Head, Loaded, Snapshot, damaged

HEAD = (
    "id, environment, owner, created, expires, revision, closed, parent, parent_revision, fence, holder, leased_until"
)
ENTRY = "revision, kind, at, body, call_id"
PARTS = ("entries", "snapshots", "blobs")
"""The tables whose rows belong to a session."""

COUNT = "SELECT count(*) FROM sessions WHERE expires > ? AND closed = 0"
RENEW = "UPDATE sessions SET expires = ? WHERE id = ?"
INSERT_SESSION = f"INSERT INTO sessions ({HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_ENTRY = f"INSERT INTO entries (session, {ENTRY}) VALUES (?, ?, ?, ?, ?, ?)"
INSERT_SNAPSHOT = "INSERT INTO snapshots (session, revision, body) VALUES (?, ?, ?)"
INSERT_BLOB = "INSERT INTO blobs (session, digest, body) VALUES (?, ?, ?) ON CONFLICT (session, digest) DO NOTHING"

EXPIRED = (
    "SELECT id FROM sessions AS s WHERE expires <= ? "
    "AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent = s.id)"
)

# Heads.


def to_text(kept: bytes) -> str:
    return str(kept, "utf-8")


def shown(kept: bytes) -> str:
    """A text that may be damaged, for people."""
    return kept.decode("utf-8", "backslashreplace")


def to_head(row: tuple[Any, ...]) -> Head:
    identity, environment, owner, created, expires, revision, closed, parent, start, fence, holder, until = row
    try:
        return Head(
            to_text(identity),
            to_text(environment),
            to_text(owner),
            float(created),
            float(expires),
            int(revision),
            bool(closed),
            None if parent is None else to_text(parent),
            int(start),
            int(fence),
            None if holder is None else to_text(holder),
            float(until),
        )
    except DAMAGE as error:
        raise damaged(shown(identity), error) from error


def head_row(head: Head) -> tuple[Any, ...]:
    return (
        head.id,
        head.environment,
        head.owner,
        head.created,
        head.expires,
        head.revision,
        head.closed,
        head.parent,
        head.parent_revision,
        head.fence,
        head.holder,
        head.leased_until,
    )


def find_head(connection: sqlite3.Connection, session: str) -> Head | None:
    row = connection.execute(f"SELECT {HEAD} FROM sessions WHERE id = ?", (session,)).fetchone()
    return to_head(row) if row else None


def read_head(connection: sqlite3.Connection, session: str) -> Head:
    head = find_head(connection, session)
    if head is None:
        raise UnknownSession(session)
    return head


def list_heads(connection: sqlite3.Connection, environment: str | None, before: Head | None, limit: int) -> list[Head]:
    conditions = ["TRUE"]
    values: list[Any] = []
    if environment is not None:
        conditions.append("environment = ?")
        values.append(environment)
    if before is not None:
        conditions.append("(created, id) < (?, ?)")
        values += (before.created, before.id)
    rows = connection.execute(
        f"SELECT {HEAD} FROM sessions WHERE {' AND '.join(conditions)} ORDER BY created DESC, id DESC", values
    )
    with closing(rows):  # of which no more are read than are asked for
        return list(islice(_readable(rows), limit))


def list_children(connection: sqlite3.Connection, session: str) -> list[Head]:
    read_head(connection, session)
    rows = connection.execute(f"SELECT {HEAD} FROM sessions WHERE parent = ? ORDER BY created, id", (session,))
    return list(_readable(rows))


def _readable(rows: Iterable[tuple[Any, ...]]) -> Iterator[Head]:
    """The heads that are not damaged; `orphans` tells of the others."""
    for row in rows:
        with suppress(BadData):
            yield to_head(row)


def count_live(connection: sqlite3.Connection, now: float) -> int:
    (live,) = connection.execute(COUNT, (now,)).fetchone()
    return int(live)


def touch(connection: sqlite3.Connection, session: str, now: float, expires: float) -> None:
    read_head(connection, session).check_live(now)
    connection.execute(RENEW, (expires, session))


def lease(connection: sqlite3.Connection, session: str, holder: str, now: float, until: float) -> Head:
    head = read_head(connection, session)
    if head.holder != holder and head.leased(now):
        raise SessionLeased(session)
    connection.execute(
        "UPDATE sessions SET fence = fence + (holder IS NOT ?1), holder = ?1, leased_until = ?2 WHERE id = ?3",
        (holder, until, session),
    )
    return read_head(connection, session)


def release(connection: sqlite3.Connection, session: str, holder: str) -> None:
    read_head(connection, session)
    connection.execute(
        "UPDATE sessions SET holder = NULL, leased_until = 0.0 WHERE id = ? AND holder = ?", (session, holder)
    )


# What belongs to a session.


def read_entries(connection: sqlite3.Connection, session: str, after: int, until: int | None) -> list[Entry]:
    return _entries_of(connection, read_head(connection, session), after, until)


def _entries_of(connection: sqlite3.Connection, head: Head, after: int, until: int | None) -> list[Entry]:
    rows = connection.execute(
        f"SELECT {ENTRY} FROM entries WHERE session = ? AND revision > ? AND revision <= ? ORDER BY revision",
        (head.id, after, head.revision if until is None else until),
    )
    return [_to_entry(head.id, row) for row in rows]


def _to_entry(session: str, row: tuple[Any, ...]) -> Entry:
    revision, kind, at, body, call_id = row
    try:
        name = None if call_id is None else to_text(call_id)
        return Entry(int(revision), to_text(kind), float(at), bytes(memoryview(body)), name)
    except DAMAGE as error:
        raise damaged(session, error) from error


def load(connection: sqlite3.Connection, session: str, at: int | None) -> Loaded:
    head = read_head(connection, session)
    row = connection.execute(
        "SELECT revision, body FROM snapshots WHERE session = ? AND revision <= ? ORDER BY revision DESC LIMIT 1",
        (session, head.revision if at is None else at),
    ).fetchone()
    snapshot = Snapshot(*row) if row else None
    return Loaded(head, snapshot, _entries_of(connection, head, snapshot.revision if snapshot else 0, at))


def find_call(connection: sqlite3.Connection, session: str, call_id: str) -> Entry | None:
    read_head(connection, session)
    row = connection.execute(
        f"SELECT {ENTRY} FROM entries WHERE session = ? AND call_id = ?", (session, call_id)
    ).fetchone()
    return _to_entry(session, row) if row else None


def read_blobs(connection: sqlite3.Connection, session: str, digests: Sequence[str]) -> dict[str, bytes]:
    read_head(connection, session)
    found: dict[str, bytes] = {}
    for digest in digests:
        row = connection.execute(
            "SELECT body FROM blobs WHERE session = ? AND digest = ?", (session, digest)
        ).fetchone()
        if row:
            found[digest] = row[0]
    return found


# Making and removing sessions.


def check_parent(connection: sqlite3.Connection, head: Head) -> None:
    """Raise unless the session that this one forks from is there, and has come as far."""
    if head.parent is not None and head.parent_revision > read_head(connection, head.parent).revision:
        raise UnknownRevision(head.parent, f"session {head.parent!r} has no revision {head.parent_revision}")


def create(
    connection: sqlite3.Connection, head: Head, entries: Sequence[Entry], snapshot: Snapshot | None, blobs: Blobs
) -> None:
    check_parent(connection, head)
    try:
        connection.execute(INSERT_SESSION, head_row(head))
    except sqlite3.IntegrityError:
        raise StoreError(f"there is a session {head.id!r} already") from None
    insert_entries(connection, head.id, entries)
    if snapshot is not None:
        connection.execute(INSERT_SNAPSHOT, (head.id, snapshot.revision, snapshot.body))
    insert_blobs(connection, head.id, blobs)


def insert_entries(connection: sqlite3.Connection, session: str, entries: Iterable[Entry]) -> None:
    for entry in entries:
        row = (session, entry.revision, entry.kind, entry.at, entry.body, entry.call_id)
        try:
            connection.execute(INSERT_ENTRY, row)
        except sqlite3.IntegrityError:
            raise DuplicateCall(session, str(entry.call_id)) from None


def insert_blobs(connection: sqlite3.Connection, session: str, blobs: Blobs) -> None:
    if blobs:
        connection.executemany(INSERT_BLOB, ((session, digest, body) for digest, body in blobs.items()))


def sweep(connection: sqlite3.Connection, now: float) -> int:
    swept = 0
    while gone := _remove(connection, EXPIRED, now):  # from the youngest forks up to their parents
        swept += gone
    return swept


def delete(connection: sqlite3.Connection, session: str) -> None:
    if connection.execute("SELECT 1 FROM sessions WHERE parent = ? LIMIT 1", (session,)).fetchone():
        found = connection.execute(RENEW, (0.0, session)).rowcount
    else:
        found = _remove(connection, "?", session)
    if not found:
        raise UnknownSession(session)


def _remove(connection: sqlite3.Connection, chosen: str, *values: Any) -> int:
    """Remove sessions that no fork reads, also damaged ones; tells how many."""
    for table in PARTS:
        connection.execute(f"DELETE FROM {table} WHERE session IN ({chosen})", values)
    return connection.execute(f"DELETE FROM sessions WHERE id IN ({chosen})", values).rowcount
