"""Maintenance of the tables: exports, sizes, orphans, and free space."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from stateroom.errors import UnknownSession
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS
from stateroom.store.postgresql.connection import LONG, PostgresLink, transaction
from stateroom.store.postgresql.statements import READER, Statements, place_of_row, text
from stateroom.store.records import Record, Size, Snapshot, lost_fork, lost_parts
from stateroom.store.tables import shown

HEADS_AT_ONCE = 1_000


class PostgreSQLMaintenance(Maintenance):
    """Maintenance of the tables."""

    def __init__(
        self, store: Store, sql: Statements, link: Callable[[], AbstractAsyncContextManager[PostgresLink]]
    ) -> None:
        super().__init__(store)
        self._sql = sql
        self._link = link

    async def export(self, session: str) -> Record:
        sql, key = self._sql, [text(session)]
        async with self._link() as link, transaction(link, b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            heads = await link.ask(sql.head, key, LONG)
            entries = await link.ask(sql.all_entries, key, LONG)
            snapshots = await link.ask(sql.all_snapshots, key, LONG)
            blobs = await link.ask(sql.all_blobs, key, LONG)
        if not heads:
            raise UnknownSession(session)
        return Record(
            READER.head(heads[0]),
            [READER.entry(session, row) for row in entries],
            [Snapshot(*row) for row in snapshots],
            {READER.to_text(digest): body for digest, body in blobs},
        )

    async def sizes(self) -> dict[str, Size]:
        async with self._link() as link:
            rows: list[Any] = await link.ask(self._sql.sizes, (), LONG)
        return {kind: Size(count, size) for kind, count, size in rows}

    async def orphans(self) -> list[str]:
        found = []
        async with self._link() as link:
            for table, statement in self._sql.orphans.items():
                rows = await link.ask(statement, (), LONG)
                found += [f"{lost_parts(table, shown(session))}: {count}" for session, count in rows]
            forks = await link.ask(self._sql.lost_forks, (), LONG)
            found += [lost_fork(shown(fork), shown(parent)) for fork, parent in forks]
            return found + await self._damages(link)

    async def _damages(self, link: PostgresLink) -> list[str]:
        """The errors of the heads that cannot be read."""
        found: list[str] = []
        last: tuple[bytes, ...] = ()
        while rows := await link.ask(*self._sql.heads(ALL_SESSIONS, "newest", last, HEADS_AT_ONCE), LONG):
            found += READER.damages(rows)
            last = place_of_row(rows[-1], "newest")
        return found

    async def vacuum(self) -> None:
        """Remove data without a session, and make the space of what was removed reusable."""
        async with self._link() as link:
            for statement in (*self._sql.remove_orphans, *self._sql.vacuum):
                await link.ask(statement, (), LONG)
