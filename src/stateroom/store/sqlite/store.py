"""The `Store` contract on SQLite, and the thread that owns the one connection to the file.

The thread takes the jobs that wait and commits the writes in one transaction, so that sessions which write at the same
time share the cost of reaching the disk.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from stateroom.errors import StateroomError, StoreUnavailable, UnknownStore
from stateroom.store.concurrency import first_batch
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order
from stateroom.store.records import Commit, Entry, Head, Loaded, Record, Size
from stateroom.store.sqlite import maintenance, rows
from stateroom.store.sqlite.file import connect
from stateroom.store.sqlite.jobs import AppendJob, Job, OtherJob, Outcome, do_together, failed, write_all
from stateroom.store.url import parse_url, without_secrets

P = ParamSpec("P")
T = TypeVar("T")


CHECKPOINT_SECONDS = 1.0
"""Seconds that the removal of a session waits until nobody reads or writes the log."""


class SQLiteStore(Store):
    """Sessions in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ConnectionThread(path)

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url)
        if parts.host or len(parts.path) < 2 or parts.path == "/:memory:":
            shown = without_secrets(url)
            raise UnknownStore(
                f"{shown}: write sqlite:///relative.db or sqlite:////absolute/path.db (or use memory://)"
            )
        store = cls(Path(parts.path[1:]))
        await store._thread.start()
        return store

    async def close(self) -> None:
        await self._thread.stop()

    async def put(self, record: Record, *, new: bool = False) -> None:
        await self._thread.write(rows.put, record, new)

    async def append(self, commit: Commit) -> None:
        await self._thread.append(commit)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        await self._thread.write(rows.touch, session, now, expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return await self._thread.write(rows.lease, session, holder, now, until)

    async def release(self, session: str, holder: str) -> None:
        await self._thread.write(rows.release, session, holder)

    async def head(self, session: str) -> Head:
        return await self._thread.read(rows.read_head, session)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await self._thread.read(rows.list_heads, wanted, order, after, limit)

    async def children(self, session: str) -> list[Head]:
        return await self._thread.read(rows.list_children, session)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        return await self._thread.read(rows.load, session, at)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return await self._thread.read(rows.read_entries, session, after, until)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self._thread.read(rows.find_call, session, call_id)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._thread.read(rows.read_blobs, session, digests)

    async def prune(self, session: str, below: int) -> int:
        return await self._thread.write(rows.prune, session, below)

    async def sweep(self, now: float) -> int:
        swept = await self._thread.write(rows.sweep, now)
        with suppress(StoreUnavailable):  # then the next sweep gives back what is free
            await self.maintenance.free_space()
        if swept:
            await self._forget()
        return swept

    async def delete(self, session: str) -> None:
        await self._thread.write(rows.delete, session)
        await self._forget()

    async def _forget(self) -> None:
        """Empty the log, which still has what was removed; while others read or write it, that waits for the next."""
        with suppress(StoreUnavailable):
            await asyncio.to_thread(maintenance.checkpoint, self._thread.path, patience=CHECKPOINT_SECONDS)

    async def size(self, session: str) -> Size:
        return await self._thread.read(rows.size, session)

    async def count(self, now: float) -> int:
        return await self._thread.read(rows.count_live, now)

    @property
    def maintenance(self) -> SQLiteMaintenance:
        return SQLiteMaintenance(self, self._thread)


class SQLiteMaintenance(Maintenance):
    """Maintenance of an SQLite file."""

    def __init__(self, store: Store, thread: ConnectionThread) -> None:
        super().__init__(store)
        self._thread = thread

    async def export(self, session: str) -> Record:
        return await self._thread.read(maintenance.export, session)

    async def sizes(self) -> dict[str, Size]:
        return await self._thread.read(maintenance.sizes)

    async def orphans(self) -> list[str]:
        return await self._thread.read(maintenance.orphans)

    async def vacuum(self) -> None:
        await self._thread.write(maintenance.remove_orphans)
        await self.free_space()
        await asyncio.to_thread(maintenance.checkpoint, self._thread.path)

    async def free_space(self) -> None:
        """Give the free pages of the file back to the disk."""
        for _ in range(0, await self._thread.read(maintenance.free_pages), maintenance.PAGES_AT_ONCE):
            await self._thread.write(maintenance.give_pages_back)


class ConnectionThread:
    """Does jobs on the connection, in the order in which they come.

    Jobs wait in a deque, from which the thread takes all that are there as soon as it has the interpreter. So it starts
    the next transaction before the event loop goes on with the answers of the last one, and both work side by side.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Job] = deque()
        self._signals: SimpleQueue[bool] = SimpleQueue()
        """True when jobs wait, False when no more will come."""
        self._taken: list[Job] = []
        """Jobs that the thread has taken, and may have answered."""
        self._ended: Callable[[], StoreUnavailable] | None = None
        """Makes the error for all jobs that come after the end."""

    async def start(self) -> None:
        """Start the thread, and open the file on it."""
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="stateroom-sqlite", daemon=True)
        self._thread.start()
        try:
            await started
        except asyncio.CancelledError:
            self._signals.put(False)
            raise

    async def stop(self) -> None:
        """Finish all jobs, and refuse later ones."""
        if self._ended is None:
            self._ended = lambda: StoreUnavailable(f"the store {self.path} is closed")
        if self._thread is not None:
            self._signals.put(False)
            await asyncio.to_thread(self._thread.join)

    # In the event loop.

    def append(self, commit: Commit) -> asyncio.Future[None]:
        """Append an entry, with the appends of other sessions that come at the same time."""
        if self._ended is not None:
            raise self._ended()
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(AppendJob(commit, done))
        if len(self._waiting) == 1:  # else the thread has its signal
            self._signals.put(True)
        return done

    def read(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Call a function that only reads."""
        return self._submit(do, arguments, writes=False)

    def write(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Call a function that writes."""
        return self._submit(do, arguments, writes=True)

    def _submit(self, do: Callable[..., T], arguments: tuple[Any, ...], *, writes: bool) -> asyncio.Future[T]:
        if self._ended is not None:
            raise self._ended()
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(OtherJob(do, arguments, writes, done))
        if len(self._waiting) == 1:
            self._signals.put(True)
        return done

    def _die(self, cause: BaseException) -> None:
        """Fail all pending and later jobs. In the event loop, so that no job can come in between."""
        self._ended = lambda: self._stopped(cause)
        _answer(failed([*self._taken, *self._waiting], self._stopped(cause)))

    def _stopped(self, cause: BaseException) -> StoreUnavailable:
        stopped = StoreUnavailable(f"the thread of the store {self.path} has ended, restart the process: {cause!r}")
        stopped.__cause__ = cause
        return stopped

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} was deleted or replaced while it was open, and what is written now would be lost: "
            "put the file back, or restart what uses it"
        )

    # In the thread.

    def _serve(self, started: asyncio.Future[None]) -> None:
        try:
            connection = connect(self.path)
            identity = _identity_of(self.path)
        except StateroomError as error:
            self._call(_answer, [(started, None, error)])
            return
        except BaseException as error:  # noqa: BLE001 (without an answer the caller waits forever)
            self._call(_answer, [(started, None, self._stopped(error))])
            return
        self._call(_answer, [(started, None, None)])
        with closing(connection):
            try:
                self._work(connection, identity)
            except BaseException as error:  # noqa: BLE001 (all callers are told)
                self._call(self._die, error)

    def _call(self, function: Callable[[Any], None], argument: Any) -> None:
        """Call a function in the event loop."""
        with suppress(RuntimeError):  # the loop is closed, and no caller is left
            self._loop.call_soon_threadsafe(function, argument)

    def _work(self, connection: sqlite3.Connection, identity: tuple[int, int] | None) -> None:
        rest: list[Job] = []
        more, there = True, True
        while True:
            idle = not rest and not self._waiting
            if idle:
                if not more:
                    return
                more = self._signals.get()
            while more and not self._signals.empty():
                more = self._signals.get()
            jobs = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._taken = rest + jobs
            reads = [job for job in jobs if not job.writes]
            writes = rest + [job for job in jobs if job.writes]
            share = first_batch(len(writes)) if idle else len(writes)
            if reads:
                outcomes = do_together(reads, connection) or []
                self._call(_answer, outcomes if there else failed(reads, self._replaced()))
            if writes:
                outcomes = write_all(writes[:share], connection)
                there = _identity_of(self.path) == identity  # only now: what is acknowledged is in the file at the path
                self._call(_answer, outcomes if there else failed(writes[:share], self._replaced()))
            self._taken = rest = writes[share:]


def _answer(outcomes: list[Outcome]) -> None:
    """Answer the callers."""
    for done, result, error in outcomes:
        if done.done():  # the caller has stopped waiting
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """What identifies the file at a path; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
