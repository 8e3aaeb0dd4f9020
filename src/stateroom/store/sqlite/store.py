"""The contract on SQLite: a thread that owns the one connection, and what it is asked to do."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Concatenate, ParamSpec, Self, TypeVar

from stateroom.errors import StateroomError, StoreUnavailable, UnknownStore
from stateroom.store.batch import first_batch
from stateroom.store.contract import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.sqlite import maintenance, rows
from stateroom.store.sqlite.file import connect, identity_of
from stateroom.store.sqlite.jobs import Append, Job, Other, Outcome, failed, read, resolve, write
from stateroom.store.url import parse_url, without_secrets

P = ParamSpec("P")
T = TypeVar("T")


class SQLiteStore(Store):
    """Sessions in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Job] = []
        """Work that has come up in this turn of the loop."""
        self._handed_over: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._in_hand: list[Job] = []
        """Work that the thread has taken, and may have answered."""
        self._died_of: BaseException | None = None
        """Why the thread is gone before its time."""
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url)
        if parts.host or len(parts.path) < 2 or parts.path == "/:memory:":
            shown = without_secrets(url)
            raise UnknownStore(
                f"{shown}: write sqlite:///relative.db or sqlite:////absolute/path.db (or use memory://)"
            )
        store = cls(Path(parts.path[1:]))
        started: asyncio.Future[None] = store._loop.create_future()
        store._thread = threading.Thread(target=store._serve, args=(started,), name="stateroom-sqlite", daemon=True)
        store._thread.start()
        try:
            await started
        except asyncio.CancelledError:
            store._handed_over.put(None)
            raise
        return store

    async def close(self) -> None:
        self._closed = True  # from here on no work can come after the None, where nobody would do it
        if self._thread is not None:
            self._hand_over()
            self._handed_over.put(None)
            await asyncio.to_thread(self._thread.join)

    # The thread.

    def _serve(self, started: asyncio.Future[None]) -> None:
        try:
            connection = connect(self.path)
            identity = identity_of(self.path)
        except StateroomError as error:
            self._report([(started, None, error)])
            return
        except BaseException as error:  # noqa: BLE001 (without an answer whoever opens it waits for ever)
            self._report([(started, None, self._stopped(error))])
            return
        self._report([(started, None, None)])
        with closing(connection):
            try:
                self._work(connection, identity)
            except BaseException as error:  # noqa: BLE001 (all who wait are told)
                with suppress(RuntimeError):  # the loop is gone, and with it whoever asked
                    self._loop.call_soon_threadsafe(self._die, error)

    def _work(self, connection: sqlite3.Connection, identity: tuple[int, int] | None) -> None:
        rest: list[Job] = []
        closing, there = False, True
        while rest or not closing:
            idle = not rest and self._handed_over.empty()
            jobs, closing = self._gather(closing, wait=not rest)
            self._in_hand = rest + jobs
            reads = [job for job in jobs if not job.writes]
            writes = rest + [job for job in jobs if job.writes]
            share = first_batch(len(writes)) if idle else len(writes)
            if reads:
                self._report(read(reads, connection) if there else failed(reads, self._replaced()))
            if writes:
                outcomes = write(writes[:share], connection)
                there = identity_of(self.path) == identity  # only now: what is acknowledged is in the file at the path
                self._report(outcomes if there else failed(writes[:share], self._replaced()))
            self._in_hand = rest = writes[share:]

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} was deleted or replaced while it was open, and what is written now would be lost: "
            "put the file back, or restart what uses it"
        )

    def _stopped(self, cause: BaseException) -> StoreUnavailable:
        stopped = StoreUnavailable(f"the thread of the store {self.path} has ended, restart the process: {cause!r}")
        stopped.__cause__ = cause
        return stopped

    def _die(self, cause: BaseException) -> None:
        """Fail all who wait, and from now on all who come. In the loop, so that nobody can come in between."""
        self._died_of = cause
        self._hand_over()
        left, _ = self._gather(closing=True, wait=False)
        resolve(failed([*self._in_hand, *left], self._stopped(cause)))

    def _gather(self, closing: bool, *, wait: bool) -> tuple[list[Job], bool]:
        """The work that has come up, waiting for some if there is none, and whether the store is to close."""
        jobs: list[Job] = []
        with suppress(Empty):
            while True:
                batch = self._handed_over.get(block=wait and not (jobs or closing))
                if batch is None:
                    closing = True
                else:
                    jobs += batch
        return jobs, closing

    def _report(self, outcomes: list[Outcome]) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it whoever asked
            self._loop.call_soon_threadsafe(resolve, outcomes)

    def _read(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Have the thread answer a question."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._ask(Other(do, arguments, writes=False, done=done))
        return done

    def _change(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Have the thread change something."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._ask(Other(do, arguments, writes=True, done=done))
        return done

    def _ask(self, job: Job) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} is closed")
        if self._died_of is not None:
            raise self._stopped(self._died_of)
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append(job)

    def _hand_over(self) -> None:
        """Give the thread all the work of this turn at once, so that it need not fight the loop for the interpreter."""
        if self._waiting:
            self._handed_over.put(self._waiting)
            self._waiting = []

    # The contract.

    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        await self._change(rows.create, head, entries, snapshot, blobs)

    async def append(self, commit: Commit) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._ask(Append(commit, done))
        await done

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        await self._change(rows.touch, session, now, expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return await self._change(rows.lease, session, holder, now, until)

    async def release(self, session: str, holder: str) -> None:
        await self._change(rows.release, session, holder)

    async def head(self, session: str) -> Head:
        return await self._read(rows.read_head, session)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await self._read(rows.list_heads, environment, before, limit)

    async def children(self, session: str) -> list[Head]:
        return await self._read(rows.list_children, session)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        return await self._read(rows.load, session, at)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return await self._read(rows.read_entries, session, after, until)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self._read(rows.find_call, session, call_id)

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        return await self._read(rows.read_blobs, session, digests)

    async def sweep(self, now: float) -> int:
        swept = await self._change(rows.sweep, now)
        with suppress(StoreUnavailable):  # then the next sweep gives back what is free
            await self._give_pages_back()
        return swept

    async def delete(self, session: str) -> None:
        await self._change(rows.delete, session)

    async def count(self, now: float) -> int:
        return await self._read(rows.count_live, now)

    # Care.

    async def export(self, session: str) -> Record:
        return await self._read(maintenance.export, session)

    async def restore(self, record: Record) -> None:
        await self._change(maintenance.restore, record)

    async def prune(self, session: str, below: int) -> int:
        return await self._change(maintenance.prune, session, below)

    async def size(self, session: str) -> Size:
        return await self._read(maintenance.size, session)

    async def sizes(self) -> dict[str, Size]:
        return await self._read(maintenance.sizes)

    async def orphans(self) -> list[str]:
        return await self._read(maintenance.orphans)

    async def vacuum(self) -> None:
        await self._change(maintenance.remove_orphans)
        await self._give_pages_back()
        await asyncio.to_thread(_move_log_into, self.path)

    async def _give_pages_back(self) -> None:
        for _ in range(0, await self._read(maintenance.free_pages), maintenance.PAGES_AT_ONCE):
            await self._change(maintenance.give_pages_back)


def _move_log_into(path: Path) -> None:
    """Bring the file itself up to date, so that it shrinks. Not inside a transaction, so on a connection of its own."""
    try:
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite: {error}") from error
