"""Care for an SQLite file: whole sessions out and in, their past and their size, and what belongs to nobody."""

from __future__ import annotations

import sqlite3

from stateroom.errors import BadData, StoreError, UnknownRevision
from stateroom.store.contract import Record, Size, Snapshot
from stateroom.store.sqlite.rows import (
    HEAD,
    INSERT_SESSION,
    INSERT_SNAPSHOT,
    PARTS,
    check_parent,
    find_head,
    head_row,
    insert_blobs,
    insert_entries,
    read_entries,
    read_head,
    shown,
    to_head,
    to_text,
)

PAGES_AT_ONCE = 500
"""How many free pages are given back in one transaction; other work can come between."""


def export(connection: sqlite3.Connection, session: str) -> Record:
    head = read_head(connection, session)
    snapshots = connection.execute(
        "SELECT revision, body FROM snapshots WHERE session = ? ORDER BY revision", (session,)
    )
    blobs = connection.execute("SELECT digest, body FROM blobs WHERE session = ?", (session,))
    entries = read_entries(connection, session, 0, None)
    kept = {to_text(digest): body for digest, body in blobs}
    return Record(head, entries, [Snapshot(*row) for row in snapshots], kept)


def restore(connection: sqlite3.Connection, record: Record) -> None:
    head = record.head
    check_parent(connection, head)
    kept = find_head(connection, head.id)
    if kept is None:
        connection.execute(INSERT_SESSION, head_row(head))
    elif head.continues(kept):
        marks = ", ".join("?" * len(head_row(head)))
        connection.execute(f"UPDATE sessions SET ({HEAD}) = ({marks}) WHERE id = ?", (*head_row(head), head.id))
    else:
        raise StoreError(f"there is another session {head.id!r} already, or a later moment of this one")
    entries, snapshots = (_revisions(connection, table, head.id) for table in ("entries", "snapshots"))
    insert_entries(connection, head.id, (entry for entry in record.entries if entry.revision not in entries))
    connection.executemany(
        INSERT_SNAPSHOT,
        [(head.id, each.revision, each.body) for each in record.snapshots if each.revision not in snapshots],
    )
    insert_blobs(connection, head.id, record.blobs)


def _revisions(connection: sqlite3.Connection, table: str, session: str) -> set[int]:
    return {
        revision for (revision,) in connection.execute(f"SELECT revision FROM {table} WHERE session = ?", (session,))
    }


def prune(connection: sqlite3.Connection, session: str, below: int) -> int:
    head = read_head(connection, session)
    if below not in _revisions(connection, "snapshots", session):
        raise UnknownRevision(session, f"session {session!r} has no snapshot at revision {below}")
    connection.execute("DELETE FROM snapshots WHERE session = ? AND revision < ?", (session, below))
    return connection.execute(
        "DELETE FROM entries WHERE session = ? AND revision > ? AND revision <= ?",
        (session, head.parent_revision + 1, below),
    ).rowcount


def size(connection: sqlite3.Connection, session: str) -> Size:
    read_head(connection, session)
    sizes = [_measure(connection, f"{table} WHERE session = ?", session) for table in PARTS]
    return Size(sizes[0].rows, sum(size.bytes for size in sizes))


def sizes(connection: sqlite3.Connection) -> dict[str, Size]:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    names = "(SELECT CAST(id || environment || owner AS BLOB) AS body FROM sessions)"
    return {
        "sessions": _measure(connection, names),
        **{table: _measure(connection, table) for table in PARTS},
        "file": Size(pages, pages * page),
    }


def _measure(connection: sqlite3.Connection, bodies: str, *values: str) -> Size:
    """The number of rows and the bytes of their bodies, which SQLite need not read for that."""
    return Size(
        *connection.execute(f"SELECT count(*), coalesce(sum(length(body)), 0) FROM {bodies}", values).fetchone()
    )


def orphans(connection: sqlite3.Connection) -> list[str]:
    found = []
    for table in PARTS:
        rows = connection.execute(
            f"SELECT session, count(*) FROM {table} WHERE session NOT IN (SELECT id FROM sessions) "
            "GROUP BY session ORDER BY session"
        )
        found += [f"{table} of session {shown(session)!r}, which is gone: {count}" for session, count in rows]
    forks = connection.execute(
        "SELECT id, parent FROM sessions WHERE parent NOT IN (SELECT id FROM sessions) ORDER BY id"
    )
    found += [
        f"session {shown(fork)!r}, forked from session {shown(parent)!r}, which is gone" for fork, parent in forks
    ]
    for row in connection.execute(f"SELECT {HEAD} FROM sessions ORDER BY id"):
        try:
            to_head(row)
        except BadData as error:
            found.append(str(error))
    return found


def remove_orphans(connection: sqlite3.Connection) -> None:
    """Remove what belongs to no session. A fork whose parent is gone stays: what it has of its own can be read."""
    for table in PARTS:
        connection.execute(f"DELETE FROM {table} WHERE session NOT IN (SELECT id FROM sessions)")


def free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)


def give_pages_back(connection: sqlite3.Connection) -> None:
    """Cut free pages off the file."""
    for _ in range(min(PAGES_AT_ONCE, free_pages(connection))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # whatever the number, `execute` takes one step, one page
