"""The store itself: each operation a round trip, its answer turned into what the contract says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from stateroom.errors import (
    DuplicateCall,
    SessionLeased,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.contract import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.postgresql import maintenance
from stateroom.store.postgresql.address import Address, parse_address
from stateroom.store.postgresql.appends import Append, Appends
from stateroom.store.postgresql.connection import LONG, Link, Row
from stateroom.store.postgresql.pool import Pool
from stateroom.store.postgresql.schema import set_up
from stateroom.store.postgresql.statements import Statements
from stateroom.store.postgresql.values import (
    BYTES,
    Value,
    array,
    bytes_item,
    entry_columns,
    head_values,
    readable,
    real,
    text,
    text_item,
    to_entry,
    to_head,
    to_text,
    whole,
)

SWEPT_AT_ONCE = 20
"""How many sessions a sweep removes in one transaction: for so long a writer who comes too late for them waits."""


class PostgreSQLStore(Store):
    """Sessions in a PostgreSQL database, version 15 or later.

    `postgresql://user:password@host:5432/database` takes these options, and all that libpq takes (`sslmode`, several
    hosts, ...):

    - `schema`: the schema in which the tables lie, and are made if they are not there; `stateroom` unless given.
    - `pool`: how many connections one store opens at most; 8 unless given.

    It works behind a pooler that gives every transaction another server connection.
    """

    remote = True

    def __init__(self, address: Address) -> None:
        self.address = address
        self._sql = Statements(address.schema)
        self._pool = Pool(address.connect, address.pool)
        self._appends = Appends(self._pool, self._sql)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        store = cls(parse_address(url))
        try:
            async with store._pool.link() as link:
                await set_up(link, store.address.schema)
        except BaseException as error:
            await store.close()
            if type(error) is StoreError:
                raise StoreUnavailable(f"cannot set up the store in {store.address.place}: {error}") from None
            raise
        return store

    async def close(self) -> None:
        self._closed = True
        await self._appends.finish()
        await self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store in {self.address.place} is closed")

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        self._check_open()
        async with self._pool.link() as link:
            yield link

    async def _ask(self, statement: bytes, *values: Value) -> list[Row]:
        async with self._link() as link:
            return await link.ask(statement, values)

    # Writing.

    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        ((letter,),) = await self._ask(
            self._sql.create,
            *head_values(head),
            *entry_columns(entries),
            whole(snapshot.revision) if snapshot else None,
            snapshot.body if snapshot else None,
            array(BYTES, [text_item(digest) for digest in blobs]),
            array(BYTES, [bytes_item(body) for body in blobs.values()]),
        )
        if letter is not None:
            raise _refusal_to_create(letter, head, entries)

    async def append(self, commit: Commit) -> None:
        self._check_open()
        done: asyncio.Future[None] = self._loop.create_future()
        self._appends.add(Append(commit, done))
        await done

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        async with self._link() as link:
            while not await link.ask(self._sql.touch, [text(session), real(now), real(expires)]):
                (await self._head(link, session)).check_live(now)  # if it is live now, it was renewed in between

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        values = [text(session), text(holder), real(now), real(until)]
        async with self._link() as link:
            while not (rows := await link.ask(self._sql.lease, values)):
                if (await self._head(link, session)).leased(now):  # else it was released in between
                    raise SessionLeased(session)
        return to_head(rows[0])

    async def release(self, session: str, holder: str) -> None:
        async with self._link() as link:
            if not await link.ask(self._sql.release, [text(session), text(holder)]):
                await self._head(link, session)

    async def sweep(self, now: float) -> int:
        swept = 0
        async with self._link() as link:
            while True:  # a parent can go once its forks have gone
                ((some,),) = await link.ask(self._sql.sweep, [real(now), whole(SWEPT_AT_ONCE)], LONG)
                if not some:
                    return swept
                swept += some

    async def delete(self, session: str) -> None:
        async with self._link() as link:
            ((found,),) = await link.ask(self._sql.delete, [text(session)], LONG)
        if not found:
            raise UnknownSession(session)

    # Reading.

    async def _head(self, link: Link, session: str) -> Head:
        rows = await link.ask(self._sql.head, [text(session)])
        if not rows:
            raise UnknownSession(session)
        return to_head(rows[0])

    async def head(self, session: str) -> Head:
        async with self._link() as link:
            return await self._head(link, session)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        last = () if before is None else (real(before.created), text(before.id))
        within = () if environment is None else (text(environment),)
        found: list[Head] = []
        while True:  # until there are as many as asked for, or no more: damaged ones are passed over
            statement = self._sql.heads[bool(within), bool(last)]
            rows = await self._ask(statement, whole(limit), *within, *last)
            found += readable(rows)
            if len(found) >= limit or len(rows) < limit:
                return found[:limit]
            last = (real(rows[-1][3]), rows[-1][0])

    async def children(self, session: str) -> list[Head]:
        async with self._link() as link:
            rows = await link.ask(self._sql.children, [text(session)])
            if not rows:
                await self._head(link, session)
        return list(readable(rows))

    async def load(self, session: str, at: int | None = None) -> Loaded:
        rows = await self._ask(self._sql.load, text(session), None if at is None else whole(at))
        if not rows:
            raise UnknownSession(session)
        first, *parts = rows
        head, snapshot = to_head(first[:12]), None
        if parts and parts[0][13] is None:  # its kind
            snapshot = Snapshot(parts[0][12], parts[0][15])
            del parts[0]
        return Loaded(head, snapshot, [to_entry(session, part[12:]) for part in parts])

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        last = None if until is None else whole(until)
        rows = await self._ask_of(session, self._sql.entries, whole(after), last)
        return [to_entry(session, row) for row in rows]

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        rows = await self._ask_of(session, self._sql.find_call, text(call_id))
        return to_entry(session, rows[0]) if rows else None

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        rows = await self._ask_of(session, self._sql.blobs, array(BYTES, [text_item(digest) for digest in digests]))
        return {to_text(digest): body for digest, body in rows}

    async def _ask_of(self, session: str, statement: bytes, *values: Value) -> list[Row]:
        """What a session has of something."""
        rows = await self._ask(statement, text(session), *values)
        if not rows:
            raise UnknownSession(session)
        return [row for row in rows if row[0] is not None]

    async def count(self, now: float) -> int:
        ((live,),) = await self._ask(self._sql.count, real(now))
        return int(live)

    # Care.

    async def export(self, session: str) -> Record:
        async with self._link() as link:
            return await maintenance.export(link, self._sql, session)

    async def restore(self, record: Record) -> None:
        async with self._link() as link:
            await maintenance.restore(link, self._sql, record)

    async def prune(self, session: str, below: int) -> int:
        async with self._link() as link:
            ((gone, found),) = await link.ask(self._sql.prune, [text(session), whole(below)], LONG)
            if not found:
                await self._head(link, session)
                raise UnknownRevision(session, f"session {session!r} has no snapshot at revision {below}")
        return int(gone)

    async def size(self, session: str) -> Size:
        async with self._link() as link:
            await self._head(link, session)
            sizes = await link.ask(self._sql.size, [text(session)], LONG)
        return Size(sizes[0][0], sum(size for _, size in sizes))

    async def sizes(self) -> dict[str, Size]:
        async with self._link() as link:
            rows: list[Any] = await link.ask(self._sql.sizes, [self.address.schema.encode()], LONG)
        return {kind: Size(count, size) for kind, count, size in rows}

    async def orphans(self) -> list[str]:
        async with self._link() as link:
            return await maintenance.orphans(link, self._sql)

    async def vacuum(self) -> None:
        async with self._link() as link:
            await maintenance.vacuum(link, self._sql)


def _refusal_to_create(letter: str, head: Head, entries: Sequence[Entry]) -> StateroomError:
    match letter:
        case "t":
            return StoreError(f"there is a session {head.id!r} already")
        case "u":
            return UnknownSession(str(head.parent))
        case "r":
            return UnknownRevision(str(head.parent), f"session {head.parent!r} has no revision {head.parent_revision}")
        case _:
            calls = [entry.call_id for entry in entries if entry.call_id is not None]
            return DuplicateCall(head.id, next(call for call in calls if calls.count(call) > 1))
