"""The thread that owns the one connection to an SQLite file, and its jobs.

It takes the jobs that wait and commits the writes in one transaction, so that sessions which write at the same time
share the cost of reaching the disk. An append is a row inserted into a view, whose trigger checks and moves the head: a
batch of appends is one statement, and the interpreter is free for the next calls while SQLite works on it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import msgspec

from stateroom.errors import Conflict, StateroomError, StoreError, StoreUnavailable
from stateroom.store.concurrency import answer, first_batch
from stateroom.store.records import Commit
from stateroom.store.sqlite.file import code_of, connect
from stateroom.store.sqlite.rows import INSERT_SNAPSHOT, RENEW, SET_INDEXED, find_call, insert_blobs, read_head

P = ParamSpec("P")
T = TypeVar("T")

APPENDS = [f"INSERT INTO appends VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * rows)}" for rows in range(65)]
"""By the number of rows; always the same texts, so that SQLite parses them only once."""


class AppendJob(msgspec.Struct, frozen=True):
    """An append, as data, so that the appends of many sessions can be written together."""

    writes: ClassVar[bool] = True

    commit: Commit
    done: asyncio.Future[Any]

    def work(self, connection: sqlite3.Connection) -> None:
        """Write this append alone, or raise what is wrong with it."""
        session, entry = self.commit.session, self.commit.entry
        with suppress(sqlite3.IntegrityError):
            return _append_all([self.commit], connection)
        duplicate = entry.call_id is not None and find_call(connection, session, entry.call_id) is not None
        read_head(connection, session).check_next(self.commit, duplicate=duplicate)
        raise Conflict(session, entry.revision - 1)


class OtherJob(msgspec.Struct, frozen=True):
    """Any other work."""

    do: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: bool
    done: asyncio.Future[Any]

    def work(self, connection: sqlite3.Connection) -> Any:
        return self.do(connection, *self.arguments)


Job = AppendJob | OtherJob

Outcome = tuple[asyncio.Future[Any], Any, Exception | None]
"""The future of a job, and its result or error."""


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
        return self._submit(AppendJob(commit, self._loop.create_future()))

    def read(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Call a function that only reads."""
        return self._submit(OtherJob(do, arguments, False, self._loop.create_future()))

    def write(
        self, do: Callable[Concatenate[sqlite3.Connection, P], T], *arguments: P.args, **_: P.kwargs
    ) -> asyncio.Future[T]:
        """Call a function that writes."""
        return self._submit(OtherJob(do, arguments, True, self._loop.create_future()))

    def _submit(self, job: Job) -> asyncio.Future[Any]:
        if self._ended is not None:
            raise self._ended()
        self._waiting.append(job)
        if len(self._waiting) == 1:  # else the thread has its signal
            self._signals.put(True)
        return job.done

    def _die(self, cause: BaseException) -> None:
        """Fail all pending and later jobs. In the event loop, so that no job can come in between."""
        self._ended = lambda: self._stopped(cause)
        _answer(failed([*self._taken, *self._waiting], self._stopped(cause)))

    def _stopped(self, cause: BaseException) -> StoreUnavailable:
        stopped = StoreUnavailable(f"the thread of the store {self.path} has stopped; restart the process: {cause!r}")
        stopped.__cause__ = cause
        return stopped

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} was deleted or replaced while it was open, so new writes would be lost: "
            "restore the file, or restart the process"
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
            except BaseException as error:  # noqa: BLE001 (all callers get the error)
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
    for caller, result, error in outcomes:
        answer(caller, result, error)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """The identity of the file at a path; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def failed(jobs: Iterable[Job], error: Exception) -> list[Outcome]:
    """The outcomes of jobs that all failed for one reason."""
    return [(job.done, None, error) for job in jobs]


def write_all(jobs: list[Job], connection: sqlite3.Connection) -> list[Outcome]:
    """Do all writes in one transaction; if one of them is refused, each in its own."""
    commits = [job.commit for job in jobs if type(job) is AppendJob and _is_entry_alone(job.commit)]
    if len(commits) < len(jobs) or len(jobs) >= len(APPENDS):
        return do_together(jobs, connection) or _do_apart(jobs, connection)
    try:
        _append_entries(commits, connection)  # one statement is a transaction by itself
    except sqlite3.OperationalError as error:  # the file is locked, the disk is full: none of them would be written
        return failed(jobs, _explained(error))
    except Exception:  # noqa: BLE001 (done one by one, each raises what is wrong with it)
        return _do_apart(jobs, connection)
    return [(job.done, None, None) for job in jobs]


def _is_entry_alone(commit: Commit) -> bool:
    """Whether the commit writes nothing but the entry and the head."""
    return (
        commit.expires is None
        and commit.snapshot is None
        and not commit.blobs
        and commit.phase is None
        and commit.reward is None
    )


def _append_entries(commits: Sequence[Commit], connection: sqlite3.Connection) -> None:
    """Write the entries and move the heads; raises an IntegrityError if one of them is refused."""
    most = len(APPENDS) - 1
    for start in range(0, len(commits), most):
        values: list[Any] = []
        some = commits[start : start + most]
        for a in some:
            entry = a.entry
            values += (a.session, entry.revision, entry.kind, entry.at, entry.body, entry.call_id, a.closes, a.fence)
        connection.execute(APPENDS[len(some)], values)


def _append_all(commits: Sequence[Commit], connection: sqlite3.Connection) -> None:
    """Write whole commits; raises an IntegrityError if one of them is refused."""
    _append_entries(commits, connection)
    connection.executemany(RENEW, [(a.expires, a.session) for a in commits if a.expires is not None])
    indexed = [(a.phase, a.reward, a.session) for a in commits if a.phase is not None or a.reward is not None]
    connection.executemany(SET_INDEXED, indexed)
    snapshots = [(a.session, a.snapshot.revision, a.snapshot.body) for a in commits if a.snapshot is not None]
    connection.executemany(INSERT_SNAPSHOT, snapshots)
    for a in commits:
        insert_blobs(connection, a.session, a.blobs)


def do_together(jobs: list[Job], connection: sqlite3.Connection) -> list[Outcome] | None:
    """Do all jobs in one transaction; None if one of several writes is refused, and none is done."""
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
        return failed(jobs, _explained(error))
    return None if refused and len(jobs) > 1 else outcomes


def _attempt_all(jobs: list[Job], connection: sqlite3.Connection) -> list[Outcome] | None:
    """Do all jobs, the appends among several of them at once; None if one of those is refused."""
    appends = [job for job in jobs if isinstance(job, AppendJob)] if len(jobs) > 1 else []
    try:
        _append_all([job.commit for job in appends], connection)
    except sqlite3.OperationalError:
        raise
    except Exception:  # noqa: BLE001 (done one by one, each raises what is wrong with it)
        return None
    written: list[Outcome] = [(job.done, None, None) for job in appends]
    others = [job for job in jobs if not isinstance(job, AppendJob)] if appends else jobs
    return written + [_attempt(job, connection) for job in others]


def _attempt(job: Job, connection: sqlite3.Connection) -> Outcome:
    try:
        return job.done, job.work(connection), None
    except StateroomError as error:
        return job.done, None, error
    except Exception as error:  # noqa: BLE001 (a value that SQLite cannot take; without an answer the caller waits)
        return job.done, None, _explained(error)


def _do_apart(jobs: list[Job], connection: sqlite3.Connection) -> list[Outcome]:
    """Do each write in a transaction of its own."""
    return [outcome for job in jobs for outcome in do_together([job], connection) or ()]


def _explained(error: Exception) -> StoreError:
    """The error for a job: a problem of the file, if SQLite reports one, or else of the job's data."""
    code = code_of(error)
    if code is None:
        explained = StoreError(f"SQLite: {type(error).__name__}: {error}")
    else:
        full = "; nothing was written: free disk space and retry" if code == sqlite3.SQLITE_FULL else ""
        explained = StoreUnavailable(f"SQLite: {error}{full}")
    explained.__cause__ = error
    return explained
