"""Sessions as rows of an SQLite file; each function runs inside a transaction of its caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from msgspec.structs import astuple

from stateroom.errors import DuplicateCall, UnknownSession
from stateroom.store.head_filter import HeadFilter, Order, place_of
from stateroom.store.records import (
    Blobs,
    Entry,
    Head,
    Loaded,
    Record,
    Size,
    Snapshot,
    lost_fork,
    lost_parts,
    no_snapshot,
)
from stateroom.store.tables import ENTRY_COLUMNS, HEAD_COLUMNS, PARTS, RowReader, select_heads, shown

READER = RowReader(lambda kept: str(kept, "utf-8"))

HEAD_MARKS, ENTRY_MARKS = (", ".join("?" * len(kind.__struct_fields__)) for kind in (Head, Entry))

COUNT = "SELECT count(*) FROM sessions WHERE expires > ? AND closed = 0"
SET_LEASE = "UPDATE sessions SET fence = ?, holder = ?, leased_until = ? WHERE id = ?"
RENEW = "UPDATE sessions SET expires = ? WHERE id = ?"
SET_INDEXED = "UPDATE sessions SET phase = coalesce(?, phase), reward = coalesce(?, reward) WHERE id = ?"
INSERT_SESSION = f"INSERT INTO sessions ({HEAD_COLUMNS}) VALUES ({HEAD_MARKS})"
REPLACE_SESSION = f"UPDATE sessions SET ({HEAD_COLUMNS}) = ({HEAD_MARKS}) WHERE id = ?"
INSERT_ENTRY = f"INSERT INTO entries (session, {ENTRY_COLUMNS}) VALUES (?, {ENTRY_MARKS})"
INSERT_SNAPSHOT = "INSERT INTO snapshots (session, revision, body) VALUES (?, ?, ?)"
INSERT_BLOB = "INSERT INTO blobs (session, digest, body) VALUES (?, ?, ?) ON CONFLICT (session, digest) DO NOTHING"

EXPIRED = (
    "SELECT id FROM sessions AS s WHERE expires <= ? "
    "AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent = s.id)"
)

# Heads.


def find_head(connection: sqlite3.Connection, session: str) -> Head | None:
    row = connection.execute(f"SELECT {HEAD_COLUMNS} FROM sessions WHERE id = ?", (session,)).fetchone()
    return READER.head(row) if row else None


def read_head(connection: sqlite3.Connection, session: str) -> Head:
    head = find_head(connection, session)
    if head is None:
        raise UnknownSession(session)
    return head


def list_heads(
    connection: sqlite3.Connection, wanted: HeadFilter, order: Order, after: Head | None, limit: int
) -> list[Head]:
    last = () if after is None else place_of(after, order)
    clauses, values = select_heads(wanted, order, last, lambda value: value, "x'ff'")
    rows = connection.execute(f"SELECT {HEAD_COLUMNS} FROM sessions {clauses}", values)
    with closing(rows):  # reads no more rows than needed
        return list(islice(READER.heads(rows), limit))


def list_children(connection: sqlite3.Connection, session: str) -> list[Head]:
    read_head(connection, session)
    rows = connection.execute(f"SELECT {HEAD_COLUMNS} FROM sessions WHERE parent = ? ORDER BY created, id", (session,))
    return list(READER.heads(rows))


def count_live(connection: sqlite3.Connection, now: float) -> int:
    (live,) = connection.execute(COUNT, (now,)).fetchone()
    return int(live)


def touch(connection: sqlite3.Connection, session: str, now: float, expires: float) -> None:
    read_head(connection, session).check_live(now)
    connection.execute(RENEW, (expires, session))


def lease(connection: sqlite3.Connection, session: str, holder: str, now: float, until: float) -> Head:
    return _set_lease(connection, read_head(connection, session).leased_to(holder, now, until))


def release(connection: sqlite3.Connection, session: str, holder: str) -> None:
    _set_lease(connection, read_head(connection, session).released_by(holder))


def _set_lease(connection: sqlite3.Connection, head: Head) -> Head:
    connection.execute(SET_LEASE, (head.fence, head.holder, head.leased_until, head.id))
    return head


# The parts of a session.


def read_entries(connection: sqlite3.Connection, session: str, after: int, until: int | None) -> list[Entry]:
    return _entries_of(connection, read_head(connection, session), after, until)


def _entries_of(connection: sqlite3.Connection, head: Head, after: int, until: int | None) -> list[Entry]:
    rows = connection.execute(
        f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session = ? AND revision > ? AND revision <= ? ORDER BY revision",
        (head.id, after, head.revision if until is None else until),
    )
    return [READER.entry(head.id, row) for row in rows]


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
        f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session = ? AND call_id = ?", (session, call_id)
    ).fetchone()
    return READER.entry(session, row) if row else None


def read_blobs(connection: sqlite3.Connection, session: str, digests: Sequence[str] | None) -> dict[str, bytes]:
    read_head(connection, session)
    if digests is None:
        rows = connection.execute("SELECT digest, body FROM blobs WHERE session = ?", (session,))
        return {READER.to_text(digest): body for digest, body in rows}
    blobs: dict[str, bytes] = {}
    for digest in digests:
        row = connection.execute(
            "SELECT body FROM blobs WHERE session = ? AND digest = ?", (session, digest)
        ).fetchone()
        if row:
            blobs[digest] = row[0]
    return blobs


def size(connection: sqlite3.Connection, session: str) -> Size:
    read_head(connection, session)
    sizes = [measure(connection, f"{table} WHERE session = ?", session) for table in PARTS]
    return Size(sizes[0].rows, sum(size.bytes for size in sizes))


def measure(connection: sqlite3.Connection, bodies: str, *values: str) -> Size:
    """The number of rows and the bytes of their bodies; SQLite knows the lengths without reading the bodies."""
    return Size(
        *connection.execute(f"SELECT count(*), coalesce(sum(length(body)), 0) FROM {bodies}", values).fetchone()
    )


# Whole sessions.


def put(connection: sqlite3.Connection, record: Record, new: bool) -> None:
    head = record.head
    if head.parent is not None:
        head.check_parent(read_head(connection, head.parent).revision)
    kept = find_head(connection, head.id)
    entries, snapshots = record.entries, record.snapshots
    if kept is None:
        connection.execute(INSERT_SESSION, astuple(head))
    else:
        head.check_replaces(kept, new=new)
        connection.execute(REPLACE_SESSION, (*astuple(head), head.id))
        there = _revisions(connection, "entries", head.id)
        entries = [entry for entry in entries if entry.revision not in there]
        there = _revisions(connection, "snapshots", head.id)
        snapshots = [snapshot for snapshot in snapshots if snapshot.revision not in there]
    for entry in entries:
        try:
            connection.execute(INSERT_ENTRY, (head.id, *astuple(entry)))
        except sqlite3.IntegrityError:
            raise DuplicateCall(head.id, str(entry.call_id)) from None
    connection.executemany(INSERT_SNAPSHOT, [(head.id, each.revision, each.body) for each in snapshots])
    insert_blobs(connection, head.id, record.blobs)


def insert_blobs(connection: sqlite3.Connection, session: str, blobs: Blobs) -> None:
    if blobs:
        connection.executemany(INSERT_BLOB, ((session, digest, body) for digest, body in blobs.items()))


def _revisions(connection: sqlite3.Connection, table: str, session: str) -> set[int]:
    return {
        revision for (revision,) in connection.execute(f"SELECT revision FROM {table} WHERE session = ?", (session,))
    }


def prune(connection: sqlite3.Connection, session: str, below: int) -> int:
    head = read_head(connection, session)
    if below not in _revisions(connection, "snapshots", session):
        raise no_snapshot(session, below)
    connection.execute("DELETE FROM snapshots WHERE session = ? AND revision < ?", (session, below))
    return connection.execute(
        "DELETE FROM entries WHERE session = ? AND revision > ? AND revision <= ?",
        (session, head.parent_revision + 1, below),
    ).rowcount


def sweep(connection: sqlite3.Connection, now: float) -> int:
    swept = 0
    while gone := _remove(connection, EXPIRED, now):  # from the youngest forks up to their parents
        swept += gone
    return swept


def delete(connection: sqlite3.Connection, session: str) -> None:
    if connection.execute("SELECT 1 FROM sessions WHERE parent = ? LIMIT 1", (session,)).fetchone():
        deleted = connection.execute(RENEW, (0.0, session)).rowcount
    else:
        deleted = _remove(connection, "?", session)
    if not deleted:
        raise UnknownSession(session)


def _remove(connection: sqlite3.Connection, chosen: str, *values: Any) -> int:
    """Remove sessions that no fork reads, also damaged ones; returns their number."""
    for table in PARTS:
        connection.execute(f"DELETE FROM {table} WHERE session IN ({chosen})", values)
    return connection.execute(f"DELETE FROM sessions WHERE id IN ({chosen})", values).rowcount


# The whole file.


def export(connection: sqlite3.Connection, session: str) -> Record:
    head = read_head(connection, session)
    snapshots = connection.execute(
        "SELECT revision, body FROM snapshots WHERE session = ? ORDER BY revision", (session,)
    )
    entries = read_entries(connection, session, 0, None)
    return Record(head, entries, [Snapshot(*row) for row in snapshots], read_blobs(connection, session, None))


def sizes(connection: sqlite3.Connection) -> dict[str, Size]:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    names = "(SELECT CAST(id || environment || owner AS BLOB) AS body FROM sessions)"
    return {
        "sessions": measure(connection, names),
        **{table: measure(connection, table) for table in PARTS},
        "file": Size(pages, pages * page),
    }


def orphans(connection: sqlite3.Connection) -> list[str]:
    orphans = []
    for table in PARTS:
        rows = connection.execute(
            f"SELECT session, count(*) FROM {table} WHERE session NOT IN (SELECT id FROM sessions) "
            "GROUP BY session ORDER BY session"
        )
        orphans += [f"{lost_parts(table, shown(session))}: {count}" for session, count in rows]
    forks = connection.execute(
        "SELECT id, parent FROM sessions WHERE parent NOT IN (SELECT id FROM sessions) ORDER BY id"
    )
    orphans += [lost_fork(shown(fork), shown(parent)) for fork, parent in forks]
    return [*orphans, *READER.damages(connection.execute(f"SELECT {HEAD_COLUMNS} FROM sessions ORDER BY id"))]


def remove_orphans(connection: sqlite3.Connection) -> None:
    """Remove data without a session. A fork whose parent is gone stays: its own entries can be read."""
    for table in PARTS:
        connection.execute(f"DELETE FROM {table} WHERE session NOT IN (SELECT id FROM sessions)")
