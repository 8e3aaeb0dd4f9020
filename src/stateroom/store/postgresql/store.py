"""The `Store` contract on PostgreSQL: each operation is one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from stateroom.errors import SessionLeased, StoreError, StoreUnavailable, UnknownSession
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order, place_of
from stateroom.store.postgresql import binary
from stateroom.store.postgresql.appends import Appends, PendingAppend
from stateroom.store.postgresql.binary import READER, Value, array, blob_columns, columns, real, text, whole
from stateroom.store.postgresql.connection import (
    LONG_ANSWER_SECONDS,
    DatabaseAddress,
    Pool,
    PostgresLink,
    Row,
    parse_address,
    transaction,
)
from stateroom.store.postgresql.schema import set_up
from stateroom.store.postgresql.statements import COLUMNS, Statements
from stateroom.store.records import (
    Commit,
    Entry,
    Head,
    Loaded,
    Record,
    Size,
    Snapshot,
    lost_fork,
    lost_parts,
    no_revision,
    no_snapshot,
    taken,
)
from stateroom.store.tables import shown

T = TypeVar("T")

SESSIONS_PER_SWEEP = 20
"""Sessions that a sweep removes in one transaction; a writer that is too late for them waits that long."""

HEADS_PER_STATEMENT = 1_000

BYTES_PER_STATEMENT = 16 * 1024 * 1024
"""About the most bytes of one statement: the server takes at most 1 GiB."""


class PostgreSQLStore(Store):
    """Sessions in a PostgreSQL database, version 15 or later.

    `postgresql://user:password@host:5432/database` takes all options of libpq (`sslmode`, several hosts, ...) and:

    - `schema`: the schema of the tables, created if it does not exist; `stateroom` by default.
    - `pool`: the most connections that one store opens; 8 by default.

    It works behind a pooler that gives every transaction another server connection.
    """

    remote = True

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address
        self.sql = Statements(address.schema)
        self._pool = Pool(address)
        self._appends = Appends(self._pool, self.sql)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        store = cls(parse_address(url))
        try:
            async with store.link() as link:
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
    async def link(self) -> AsyncIterator[PostgresLink]:
        """A connection for as long as the block runs."""
        self._check_open()
        async with self._pool.link() as link:
            yield link

    async def _ask(self, statement: bytes, *values: Value) -> list[Row]:
        async with self.link() as link:
            return await link.ask(statement, values)

    @property
    def maintenance(self) -> PostgreSQLMaintenance:
        return PostgreSQLMaintenance(self)

    # Writing.

    async def put(self, record: Record, *, new: bool = False) -> None:
        record.check_calls()
        if not new:
            return await self._restore(record)
        head = record.head
        parts = (*columns(Snapshot, record.snapshots), *blob_columns(record.blobs.items()))
        values = (*binary.head_values(head), *columns(Entry, record.entries), *parts)
        ((refusal,),) = await self._ask(self.sql.create, *values)
        match refusal:
            case "taken":
                raise taken(head.id)
            case "unknown":
                raise UnknownSession(str(head.parent))
            case "revision":
                raise no_revision(str(head.parent), head.parent_revision)

    async def _restore(self, record: Record) -> None:
        """Add what is missing to a session, in as many statements as its size needs."""
        head, sql, key = record.head, self.sql, text(record.head.id)
        async with self.link() as link, transaction(link):
            kept = await link.ask(sql.lock, [key], LONG_ANSWER_SECONDS)
            if kept:
                head.check_replaces(READER.head(kept[0]), new=False)
            if head.parent is not None:
                parent = await link.ask(sql.keep, [text(head.parent)], LONG_ANSWER_SECONDS)
                if not parent:
                    raise UnknownSession(head.parent)
                head.check_parent(parent[0][0])
            await link.ask(sql.put_head, binary.head_values(head), LONG_ANSWER_SECONDS)
            for entries in _portions(record.entries, _weight):
                await link.ask(sql.put_entries, [key, *columns(Entry, entries)], LONG_ANSWER_SECONDS)
            for snapshots in _portions(record.snapshots, _weight):
                await link.ask(sql.put_snapshots, [key, *columns(Snapshot, snapshots)], LONG_ANSWER_SECONDS)
            for blobs in _portions([*record.blobs.items()], lambda blob: len(blob[1])):
                await link.ask(sql.put_blobs, [key, *blob_columns(blobs)], LONG_ANSWER_SECONDS)

    async def append(self, commit: Commit) -> None:
        self._check_open()
        done: asyncio.Future[None] = self._loop.create_future()
        self._appends.add(PendingAppend(commit, done))
        await done

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        async with self.link() as link:
            while not await link.ask(self.sql.touch, [text(session), real(now), real(expires)]):
                (await self._head(link, session)).check_live(now)  # if it is live now, it was renewed in between

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        values = [text(session), text(holder), real(now), real(until)]
        async with self.link() as link:
            while not (rows := await link.ask(self.sql.lease, values)):
                if (await self._head(link, session)).leased(now):  # else it was released in between
                    raise SessionLeased(session)
        return READER.head(rows[0])

    async def release(self, session: str, holder: str) -> None:
        async with self.link() as link:
            if not await link.ask(self.sql.release, [text(session), text(holder)]):
                await self._head(link, session)

    async def prune(self, session: str, below: int) -> int:
        async with self.link() as link:
            ((gone, has_snapshot),) = await link.ask(self.sql.prune, [text(session), whole(below)], LONG_ANSWER_SECONDS)
            if not has_snapshot:
                await self._head(link, session)
                raise no_snapshot(session, below)
        return int(gone)

    async def sweep(self, now: float) -> int:
        swept = 0
        async with self.link() as link:
            while True:  # a parent can go once its forks are gone
                ((some,),) = await link.ask(self.sql.sweep, [real(now), whole(SESSIONS_PER_SWEEP)], LONG_ANSWER_SECONDS)
                if not some:
                    return swept
                swept += some

    async def delete(self, session: str) -> None:
        async with self.link() as link:
            ((existed,),) = await link.ask(self.sql.delete, [text(session)], LONG_ANSWER_SECONDS)
        if not existed:
            raise UnknownSession(session)

    # Reading.

    async def _head(self, link: PostgresLink, session: str) -> Head:
        rows = await link.ask(self.sql.head, [text(session)])
        if not rows:
            raise UnknownSession(session)
        return READER.head(rows[0])

    async def head(self, session: str) -> Head:
        async with self.link() as link:
            return await self._head(link, session)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        last = () if after is None else tuple(map(binary.text_or_real, place_of(after, order)))
        heads: list[Head] = []
        while True:  # more than once if damaged heads are passed over
            statement, values = self.sql.heads(wanted, order, last, limit)
            rows = await self._ask(statement, *values)
            heads += READER.heads(rows)
            if len(heads) >= limit or len(rows) < limit:
                return heads[:limit]
            last = binary.place_of_row(rows[-1], order)

    async def children(self, session: str) -> list[Head]:
        async with self.link() as link:
            rows = await link.ask(self.sql.children, [text(session)])
            if not rows:
                await self._head(link, session)
        return list(READER.heads(rows))

    async def load(self, session: str, at: int | None = None) -> Loaded:
        rows = await self._ask(self.sql.load, text(session), None if at is None else whole(at))
        if not rows:
            raise UnknownSession(session)
        first, *parts = rows
        head, snapshot = READER.head(first[:COLUMNS]), None
        parts = [part[COLUMNS:] for part in parts]
        if parts and parts[0][1] is None:  # its kind
            snapshot = Snapshot(parts[0][0], parts[0][3])
            del parts[0]
        return Loaded(head, snapshot, [READER.entry(session, part) for part in parts])

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        last = None if until is None else whole(until)
        rows = await self._ask_of(session, self.sql.entries, whole(after), last)
        return [READER.entry(session, row) for row in rows]

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        rows = await self._ask_of(session, self.sql.find_call, text(call_id))
        return READER.entry(session, rows[0]) if rows else None

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        wanted = None if digests is None else array(binary.BYTES, map(text, digests))
        rows = await self._ask_of(session, self.sql.blobs, wanted)
        return {READER.to_text(digest): body for digest, body in rows}

    async def _ask_of(self, session: str, statement: bytes, *values: Value) -> list[Row]:
        """Parts of a session."""
        rows = await self._ask(statement, text(session), *values)
        if not rows:
            raise UnknownSession(session)
        return [row for row in rows if row[0] is not None]

    async def size(self, session: str) -> Size:
        async with self.link() as link:
            await self._head(link, session)
            sizes: list[Any] = await link.ask(self.sql.size, [text(session)], LONG_ANSWER_SECONDS)
        return Size(sizes[0][0], sum(size for _, size in sizes))

    async def count(self, now: float) -> int:
        ((live,),) = await self._ask(self.sql.count, real(now))
        return int(live)


class PostgreSQLMaintenance(Maintenance):
    """Maintenance of the tables."""

    store: PostgreSQLStore

    async def export(self, session: str) -> Record:
        sql, key = self.store.sql, [text(session)]
        async with self.store.link() as link, transaction(link, b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            heads = await link.ask(sql.head, key, LONG_ANSWER_SECONDS)
            entries = await link.ask(sql.all_entries, key, LONG_ANSWER_SECONDS)
            snapshots = await link.ask(sql.all_snapshots, key, LONG_ANSWER_SECONDS)
            blobs = await link.ask(sql.all_blobs, key, LONG_ANSWER_SECONDS)
        if not heads:
            raise UnknownSession(session)
        return Record(
            READER.head(heads[0]),
            [READER.entry(session, row) for row in entries],
            [Snapshot(*row) for row in snapshots],
            {READER.to_text(digest): body for digest, body in blobs},
        )

    async def sizes(self) -> dict[str, Size]:
        async with self.store.link() as link:
            rows: list[Any] = await link.ask(self.store.sql.sizes, (), LONG_ANSWER_SECONDS)
        return {kind: Size(count, size) for kind, count, size in rows}

    async def orphans(self) -> list[str]:
        orphans = []
        async with self.store.link() as link:
            for table, statement in self.store.sql.orphans.items():
                rows = await link.ask(statement, (), LONG_ANSWER_SECONDS)
                orphans += [f"{lost_parts(table, shown(session))}: {count}" for session, count in rows]
            forks = await link.ask(self.store.sql.lost_forks, (), LONG_ANSWER_SECONDS)
            orphans += [lost_fork(shown(fork), shown(parent)) for fork, parent in forks]
            return orphans + await self._damages(link)

    async def _damages(self, link: PostgresLink) -> list[str]:
        """The errors of the heads that cannot be read."""
        damages: list[str] = []
        last: tuple[bytes, ...] = ()
        while rows := await link.ask(
            *self.store.sql.heads(ALL_SESSIONS, "newest", last, HEADS_PER_STATEMENT), LONG_ANSWER_SECONDS
        ):
            damages += READER.damages(rows)
            last = binary.place_of_row(rows[-1], "newest")
        return damages

    async def vacuum(self) -> None:
        """Remove data without a session, and make the space of what was removed reusable."""
        async with self.store.link() as link:
            for statement in (*self.store.sql.remove_orphans, *self.store.sql.vacuum):
                await link.ask(statement, (), LONG_ANSWER_SECONDS)


def _portions(items: Sequence[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    portion: list[T] = []
    carried = 0
    for item in items:
        portion.append(item)
        carried += weight(item)
        if carried > BYTES_PER_STATEMENT:
            yield portion
            portion, carried = [], 0
    if portion:
        yield portion


def _weight(item: Entry | Snapshot) -> int:
    return len(item.body)
