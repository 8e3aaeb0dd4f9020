"""`sqlite:///path`: sessions in one file, durable, and safe to share between processes.

One thread owns the one connection. It takes work that has gathered and commits the writes in one transaction, so that
sessions which write at the same time share the cost of reaching the disk. An append is a row put into a view, whose
trigger checks and moves the head: a batch of appends is one statement, and while SQLite works on it the interpreter is
free to run the next calls.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import msgspec

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
    UnknownStore,
)
from stateroom.store.contract import Entry, Head, Loaded, Snapshot, Store
from stateroom.store.sqlite_file import connect
from stateroom.store.url import parse_url

T = TypeVar("T")

FEW = 8
"""Up to so many writes are not worth two transactions."""
PAGES_AT_ONCE = 500
"""How many free pages a sweep gives back in one transaction; other work can come between."""
HEAD = "id, environment, owner, created, expires, revision, closed, parent, parent_revision"
ENTRY = "revision, kind, at, body, call_id"

COUNT = "SELECT count(*) FROM sessions WHERE expires > ? AND closed = 0"
RENEW = "UPDATE sessions SET expires = ? WHERE id = ?"
INSERT_ENTRY = f"INSERT INTO entries (session, {ENTRY}) VALUES (?, ?, ?, ?, ?, ?)"
APPENDS = [f"INSERT INTO appends VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?)'] * rows)}" for rows in range(65)]
"""By the number of rows; the statements are the same each time, so that SQLite need not parse them again."""
INSERT_SNAPSHOT = "INSERT INTO snapshots (session, revision, body) VALUES (?, ?, ?)"


class _Append(msgspec.Struct, frozen=True):
    """Work: an append, as data, so that those of many sessions can be written together."""

    session: str
    entry: Entry
    expires: float | None
    snapshot: Snapshot | None
    closes: bool
    done: asyncio.Future[Any]
    writes: bool = True

    def work(self, connection: sqlite3.Connection) -> None:
        """Write this append alone, or say why not."""
        session, entry = self.session, self.entry
        try:
            _append_all([self], connection)
        except sqlite3.IntegrityError:
            _head(connection, session).check_live(entry.at)
            if entry.call_id is not None and _find_call(connection, session, entry.call_id):
                raise DuplicateCall(session, entry.call_id) from None
            raise Conflict(session, entry.revision - 1) from None


class _Other(msgspec.Struct, frozen=True):
    """Any other work."""

    work: Callable[[sqlite3.Connection], Any]
    writes: bool
    done: asyncio.Future[Any]


_Job = _Append | _Other

_Outcome = tuple[asyncio.Future[Any], Any, Exception | None]
"""Who waits, and the result or error of the job."""


class SQLiteStore(Store):
    """Sessions in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[_Job] = []
        """Work that has come up in this turn of the loop."""
        self._handed_over: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = parse_url(url)
        if parts.host or len(parts.path) < 2 or parts.path == "/:memory:":
            raise UnknownStore(f"{url}: write sqlite:///relative.db or sqlite:////absolute/path.db (or use memory://)")
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
        except StateroomError as error:
            self._report([(started, None, error)])
            return
        self._report([(started, None, None)])
        rest: list[_Job] = []
        closing = False
        while rest or not closing:
            idle = not rest and self._handed_over.empty()
            jobs, closing = self._gather(closing, wait=not rest)
            reads = [job for job in jobs if not job.writes]
            writes = rest + [job for job in jobs if job.writes]
            if reads:
                self._report(_do_together(reads, connection) or [])
            # After a rest, all sessions are in step. Half of them first: from then on, the ones make their next calls
            # while those of the others are written.
            share = (len(writes) + 1) // 2 if idle and len(writes) > FEW else len(writes)
            if writes:
                self._report(_write(writes[:share], connection))
            rest = writes[share:]
        connection.close()

    def _gather(self, closing: bool, *, wait: bool) -> tuple[list[_Job], bool]:
        """The work that has come up, waiting for some if there is none, and whether the store is to close."""
        jobs: list[_Job] = []
        with suppress(Empty):
            while True:
                batch = self._handed_over.get(block=wait and not (jobs or closing))
                if batch is None:
                    closing = True
                else:
                    jobs += batch
        return jobs, closing

    def _report(self, outcomes: list[_Outcome]) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it whoever asked
            self._loop.call_soon_threadsafe(_resolve, outcomes)

    def _run(self, work: Callable[[sqlite3.Connection], T], *, writes: bool) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._ask(_Other(work, writes, done))
        return done

    def _ask(self, job: _Job) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} is closed")
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append(job)

    def _hand_over(self) -> None:
        """Give the thread all the work of this turn at once, so that it need not fight the loop for the interpreter."""
        if self._waiting:
            self._handed_over.put(self._waiting)
            self._waiting = []

    # The contract.

    async def create(self, head: Head, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            if head.parent is not None:
                parent = _head(connection, head.parent)
                if head.parent_revision > parent.revision:
                    raise UnknownRevision(parent.id, f"session {parent.id!r} has no revision {head.parent_revision}")
            row = (head.id, head.environment, head.owner, head.created, head.expires)
            try:
                connection.execute(
                    f"INSERT INTO sessions ({HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, head.revision, head.closed, head.parent, head.parent_revision),
                )
            except sqlite3.IntegrityError:
                raise StoreError(f"there is a session {head.id!r} already") from None
            for entry in entries:
                try:
                    connection.execute(INSERT_ENTRY, _entry_row(head.id, entry))
                except sqlite3.IntegrityError:
                    raise DuplicateCall(head.id, str(entry.call_id)) from None
            if snapshot is not None:
                connection.execute(INSERT_SNAPSHOT, _snapshot_row(head.id, snapshot))

        await self._run(work, writes=True)

    async def append(
        self,
        session: str,
        entry: Entry,
        *,
        expires: float | None,
        snapshot: Snapshot | None = None,
        closes: bool = False,
    ) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._ask(_Append(session, entry, expires, snapshot, closes, done))
        await done

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        def work(connection: sqlite3.Connection) -> None:
            _head(connection, session).check_live(now)
            connection.execute(RENEW, (expires, session))

        await self._run(work, writes=True)

    async def head(self, session: str) -> Head:
        return await self._run(lambda connection: _head(connection, session), writes=False)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        def work(connection: sqlite3.Connection) -> list[Head]:
            conditions = ["TRUE"]
            values: list[Any] = []
            if environment is not None:
                conditions.append("environment = ?")
                values.append(environment)
            if before is not None:
                conditions.append("(created, id) < (?, ?)")
                values += (before.created, before.id)
            rows = connection.execute(
                f"SELECT {HEAD} FROM sessions WHERE {' AND '.join(conditions)} ORDER BY created DESC, id DESC LIMIT ?",
                (*values, limit),
            )
            return [_to_head(row) for row in rows]

        return await self._run(work, writes=False)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        def work(connection: sqlite3.Connection) -> Loaded:
            head = _head(connection, session)
            until = head.revision if at is None else at
            row = connection.execute(
                "SELECT revision, body FROM snapshots WHERE session = ? AND revision <= ? "
                "ORDER BY revision DESC LIMIT 1",
                (session, until),
            ).fetchone()
            snapshot = Snapshot(*row) if row else None
            return Loaded(head, snapshot, _entries(connection, session, snapshot.revision if snapshot else 0, until))

        return await self._run(work, writes=False)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        def work(connection: sqlite3.Connection) -> list[Entry]:
            head = _head(connection, session)
            return _entries(connection, session, after, head.revision if until is None else until)

        return await self._run(work, writes=False)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        def work(connection: sqlite3.Connection) -> Entry | None:
            _head(connection, session)
            return _find_call(connection, session, call_id)

        return await self._run(work, writes=False)

    async def sweep(self, now: float) -> int:
        def work(connection: sqlite3.Connection) -> int:
            swept = 0
            while True:  # from the youngest forks up to their parents
                rows = connection.execute(
                    "SELECT id FROM sessions AS s WHERE expires <= ? "
                    "AND NOT EXISTS (SELECT 1 FROM sessions AS fork WHERE fork.parent = s.id)",
                    (now,),
                ).fetchall()
                if not rows:
                    return swept
                _remove(connection, rows)
                swept += len(rows)

        swept = await self._run(work, writes=True)
        with suppress(StoreUnavailable):  # then the next sweep gives back what is free
            for _ in range(0, await self._run(_free_pages, writes=False), PAGES_AT_ONCE):
                await self._run(_give_pages_back, writes=True)
        return swept

    async def delete(self, session: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            _head(connection, session)
            if connection.execute("SELECT 1 FROM sessions WHERE parent = ? LIMIT 1", (session,)).fetchone():
                connection.execute(RENEW, (0.0, session))
            else:
                _remove(connection, [(session,)])

        await self._run(work, writes=True)

    async def count(self, now: float) -> int:
        def work(connection: sqlite3.Connection) -> int:
            (live,) = connection.execute(COUNT, (now,)).fetchone()
            return int(live)

        return await self._run(work, writes=False)


def _attempt(job: _Job, connection: sqlite3.Connection) -> _Outcome:
    try:
        return job.done, job.work(connection), None
    except StateroomError as error:
        return job.done, None, error
    except sqlite3.Error as error:
        return job.done, None, StoreUnavailable(f"SQLite: {error}")
    except Exception as error:  # noqa: BLE001 (a value SQLite cannot take; without an answer the caller waits for ever)
        return job.done, None, error


def _append_all(appends: Sequence[_Append], connection: sqlite3.Connection) -> None:
    """Write appends; raises an IntegrityError if one of them is refused."""
    most = len(APPENDS) - 1
    for start in range(0, len(appends), most):
        values: list[Any] = []
        some = appends[start : start + most]
        for a in some:
            entry = a.entry
            values += (a.session, entry.revision, entry.kind, entry.at, entry.body, entry.call_id, a.closes)
        connection.execute(APPENDS[len(some)], values)
    renewals = [(a.expires, a.session) for a in appends if a.expires is not None]
    if renewals:
        connection.executemany(RENEW, renewals)
    snapshots = [_snapshot_row(a.session, a.snapshot) for a in appends if a.snapshot is not None]
    if snapshots:
        connection.executemany(INSERT_SNAPSHOT, snapshots)


def _write(jobs: list[_Job], connection: sqlite3.Connection) -> list[_Outcome]:
    """Do all writes in one transaction, and if one of them is refused, each in its own."""
    appends = [
        job for job in jobs if type(job) is _Append and job.expires is None and job.snapshot is None
    ]  # nothing to be written but the entry and the head
    if len(appends) < len(jobs) or len(jobs) >= len(APPENDS):
        return _do_together(jobs, connection) or _do_apart(jobs, connection)
    try:
        _append_all(appends, connection)  # one statement is a transaction by itself
    except sqlite3.OperationalError as error:  # the file is locked, the disk is full: none of them would be written
        failure = StoreUnavailable(f"SQLite: {error}")
        return [(job.done, None, failure) for job in jobs]
    except Exception:  # noqa: BLE001 - done one by one, each tells what is wrong with it
        return _do_apart(jobs, connection)
    return [(job.done, None, None) for job in jobs]


def _do_together(jobs: list[_Job], connection: sqlite3.Connection) -> list[_Outcome] | None:
    """Do all jobs in one transaction. If one of several writes is refused, none is done, and nothing comes back."""
    writes = jobs[0].writes
    try:
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        outcomes = _attempt_all(jobs, connection)
        refused = outcomes is None or (writes and any(error is not None for _, _, error in outcomes))
        if connection.in_transaction:  # else SQLite has rolled it back by itself, and an outcome says why
            connection.execute("ROLLBACK" if refused else "COMMIT")
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        failure = StoreUnavailable(f"SQLite: {error}")
        return [(job.done, None, failure) for job in jobs]
    return None if refused and len(jobs) > 1 else outcomes


def _attempt_all(jobs: list[_Job], connection: sqlite3.Connection) -> list[_Outcome] | None:
    """Do all jobs, the appends among several of them at once; None if one of those is refused."""
    appends = [job for job in jobs if isinstance(job, _Append)] if len(jobs) > 1 else []
    try:
        _append_all(appends, connection)
    except sqlite3.OperationalError:
        raise
    except Exception:  # noqa: BLE001 - done one by one, each tells what is wrong with it
        return None
    written: list[_Outcome] = [(job.done, None, None) for job in appends]
    others = [job for job in jobs if not isinstance(job, _Append)] if appends else jobs
    return written + [_attempt(job, connection) for job in others]


def _do_apart(jobs: list[_Job], connection: sqlite3.Connection) -> list[_Outcome]:
    """Do each write in a transaction of its own."""
    return [outcome for job in jobs for outcome in _do_together([job], connection) or ()]


def _resolve(outcomes: list[_Outcome]) -> None:
    for done, result, error in outcomes:
        if done.done():  # whoever asked has stopped waiting
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _to_head(row: tuple[Any, ...]) -> Head:
    identity, environment, owner, created, expires, revision, closed, parent, parent_revision = row
    return Head(identity, environment, owner, created, expires, revision, bool(closed), parent, parent_revision)


def _head(connection: sqlite3.Connection, session: str) -> Head:
    row = connection.execute(f"SELECT {HEAD} FROM sessions WHERE id = ?", (session,)).fetchone()
    if row is None:
        raise UnknownSession(session)
    return _to_head(row)


def _entries(connection: sqlite3.Connection, session: str, after: int, until: int) -> list[Entry]:
    rows = connection.execute(
        f"SELECT {ENTRY} FROM entries WHERE session = ? AND revision > ? AND revision <= ? ORDER BY revision",
        (session, after, until),
    )
    return [Entry(*row) for row in rows]


def _find_call(connection: sqlite3.Connection, session: str, call_id: str) -> Entry | None:
    row = connection.execute(
        f"SELECT {ENTRY} FROM entries WHERE session = ? AND call_id = ?", (session, call_id)
    ).fetchone()
    return Entry(*row) if row else None


def _remove(connection: sqlite3.Connection, sessions: list[tuple[str]]) -> None:
    """Remove sessions that no fork reads."""
    connection.executemany("DELETE FROM entries WHERE session = ?", sessions)
    connection.executemany("DELETE FROM snapshots WHERE session = ?", sessions)
    connection.executemany("DELETE FROM sessions WHERE id = ?", sessions)


def _entry_row(session: str, entry: Entry) -> tuple[Any, ...]:
    return (session, entry.revision, entry.kind, entry.at, entry.body, entry.call_id)


def _snapshot_row(session: str, snapshot: Snapshot) -> tuple[Any, ...]:
    return (session, snapshot.revision, snapshot.body)


def _free_pages(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(count)


def _give_pages_back(connection: sqlite3.Connection) -> None:
    """Cut free pages off the file."""
    for _ in range(min(PAGES_AT_ONCE, _free_pages(connection))):
        connection.execute("PRAGMA incremental_vacuum(1)")  # whatever the number, `execute` takes one step, one page
