"""The `Store` contract on SQLite: each operation is a job of the thread that owns the connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

from stateroom.errors import StoreUnavailable, UnknownStore
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order
from stateroom.store.records import Commit, Entry, Head, Loaded, Record, Size
from stateroom.store.sqlite import rows
from stateroom.store.sqlite.file import connect
from stateroom.store.sqlite.thread import ConnectionThread
from stateroom.store.url import parse_url, without_secrets

PAGES_PER_TRANSACTION = 500
"""Free pages that are given back in one transaction; other jobs can come between two."""
CHECKPOINT_SECONDS = 1.0
"""Seconds that the removal of a session waits until nobody reads or writes the log."""


class SQLiteStore(Store):
    """Sessions in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread = ConnectionThread(path)

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url)
        if parts.host or len(parts.path) < 2 or parts.path == "/:memory:":
            shown = without_secrets(url)
            raise UnknownStore(
                f"{shown}: write sqlite:///relative.db or sqlite:////absolute/path.db (or use memory://)"
            )
        store = cls(Path(parts.path[1:]))
        await store.thread.start()
        return store

    async def close(self) -> None:
        await self.thread.stop()

    async def put(self, record: Record, *, new: bool = False) -> None:
        await self.thread.write(rows.put, record, new)

    async def append(self, commit: Commit) -> None:
        await self.thread.append(commit)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        await self.thread.write(rows.touch, session, now, expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return await self.thread.write(rows.lease, session, holder, now, until)

    async def release(self, session: str, holder: str) -> None:
        await self.thread.write(rows.release, session, holder)

    async def head(self, session: str) -> Head:
        return await self.thread.read(rows.read_head, session)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await self.thread.read(rows.list_heads, wanted, order, after, limit)

    async def children(self, session: str) -> list[Head]:
        return await self.thread.read(rows.list_children, session)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        return await self.thread.read(rows.load, session, at)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return await self.thread.read(rows.read_entries, session, after, until)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self.thread.read(rows.find_call, session, call_id)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self.thread.read(rows.read_blobs, session, digests)

    async def prune(self, session: str, below: int) -> int:
        return await self.thread.write(rows.prune, session, below)

    async def sweep(self, now: float) -> int:
        swept = await self.thread.write(rows.sweep, now)
        with suppress(StoreUnavailable):  # then the next sweep gives back what is free
            await self.maintenance.free_space()
        if swept:
            await self._forget()
        return swept

    async def delete(self, session: str) -> None:
        await self.thread.write(rows.delete, session)
        await self._forget()

    async def _forget(self) -> None:
        """Empty the log, which still has what was removed; while others read or write it, that waits for the next."""
        with suppress(StoreUnavailable):
            await asyncio.to_thread(_checkpoint, self.path, patience=CHECKPOINT_SECONDS)

    async def size(self, session: str) -> Size:
        return await self.thread.read(rows.size, session)

    async def count(self, now: float) -> int:
        return await self.thread.read(rows.count_live, now)

    @property
    def maintenance(self) -> SQLiteMaintenance:
        return SQLiteMaintenance(self)


class SQLiteMaintenance(Maintenance):
    """Maintenance of an SQLite file."""

    store: SQLiteStore

    async def export(self, session: str) -> Record:
        return await self.store.thread.read(rows.export, session)

    async def sizes(self) -> dict[str, Size]:
        return await self.store.thread.read(rows.sizes)

    async def orphans(self) -> list[str]:
        return await self.store.thread.read(rows.orphans)

    async def vacuum(self) -> None:
        await self.store.thread.write(rows.remove_orphans)
        await self.free_space()
        await asyncio.to_thread(_checkpoint, self.store.path)

    async def free_space(self) -> None:
        """Give the free pages of the file back to the disk."""
        for _ in range(0, await self.store.thread.read(_free_pages), PAGES_PER_TRANSACTION):
            await self.store.thread.write(_give_pages_back)


def _free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)


def _give_pages_back(connection: sqlite3.Connection) -> None:
    for _ in range(min(PAGES_PER_TRANSACTION, _free_pages(connection))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # whatever the number, `execute` takes one step, one page


def _checkpoint(path: Path, *, patience: float | None = None) -> None:
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
