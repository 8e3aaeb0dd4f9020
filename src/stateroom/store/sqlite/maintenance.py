"""Maintenance of an SQLite file: exports, sizes, orphans, and free space."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from stateroom.errors import StoreUnavailable
from stateroom.store.contract import Maintenance, Store
from stateroom.store.records import Record, Size, Snapshot, lost_fork, lost_parts
from stateroom.store.sqlite.file import connect
from stateroom.store.sqlite.rows import READER, measure, read_blobs, read_entries, read_head
from stateroom.store.sqlite.thread import ConnectionThread
from stateroom.store.tables import HEAD_COLUMNS, PARTS, shown

PAGES_AT_ONCE = 500
"""Free pages that are given back in one transaction; other jobs can come between two."""


class SQLiteMaintenance(Maintenance):
    """Maintenance of an SQLite file."""

    def __init__(self, store: Store, thread: ConnectionThread) -> None:
        super().__init__(store)
        self._thread = thread

    async def export(self, session: str) -> Record:
        return await self._thread.read(_export, session)

    async def sizes(self) -> dict[str, Size]:
        return await self._thread.read(_sizes)

    async def orphans(self) -> list[str]:
        return await self._thread.read(_orphans)

    async def vacuum(self) -> None:
        await self._thread.write(_remove_orphans)
        await self.free_space()
        await asyncio.to_thread(checkpoint, self._thread.path)

    async def free_space(self) -> None:
        """Give the free pages of the file back to the disk."""
        for _ in range(0, await self._thread.read(_free_pages), PAGES_AT_ONCE):
            await self._thread.write(_give_pages_back)


def _export(connection: sqlite3.Connection, session: str) -> Record:
    head = read_head(connection, session)
    snapshots = connection.execute(
        "SELECT revision, body FROM snapshots WHERE session = ? ORDER BY revision", (session,)
    )
    entries = read_entries(connection, session, 0, None)
    return Record(head, entries, [Snapshot(*row) for row in snapshots], read_blobs(connection, session, None))


def _sizes(connection: sqlite3.Connection) -> dict[str, Size]:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    names = "(SELECT CAST(id || environment || owner AS BLOB) AS body FROM sessions)"
    return {
        "sessions": measure(connection, names),
        **{table: measure(connection, table) for table in PARTS},
        "file": Size(pages, pages * page),
    }


def _orphans(connection: sqlite3.Connection) -> list[str]:
    found = []
    for table in PARTS:
        rows = connection.execute(
            f"SELECT session, count(*) FROM {table} WHERE session NOT IN (SELECT id FROM sessions) "
            "GROUP BY session ORDER BY session"
        )
        found += [f"{lost_parts(table, shown(session))}: {count}" for session, count in rows]
    forks = connection.execute(
        "SELECT id, parent FROM sessions WHERE parent NOT IN (SELECT id FROM sessions) ORDER BY id"
    )
    found += [lost_fork(shown(fork), shown(parent)) for fork, parent in forks]
    return [*found, *READER.damages(connection.execute(f"SELECT {HEAD_COLUMNS} FROM sessions ORDER BY id"))]


def _remove_orphans(connection: sqlite3.Connection) -> None:
    """Remove data without a session. A fork whose parent is gone stays: its own entries can be read."""
    for table in PARTS:
        connection.execute(f"DELETE FROM {table} WHERE session NOT IN (SELECT id FROM sessions)")


def _free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)


def _give_pages_back(connection: sqlite3.Connection) -> None:
    for _ in range(min(PAGES_AT_ONCE, _free_pages(connection))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # whatever the number, `execute` takes one step, one page


def checkpoint(path: Path, *, patience: float | None = None) -> None:
    """Write the log into the file, so that the file shrinks. This needs a connection outside a transaction.

    While others use the file this waits, `patience` seconds at most; then it may be left undone.
    """
    try:
        with closing(connect(path)) as connection:
            if patience is not None:
                connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite: {error}") from error
