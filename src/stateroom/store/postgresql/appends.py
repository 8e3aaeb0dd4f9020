"""Group commit: appends to different sessions that come up together, or while a batch is under way, are one statement.

So they share the way to the server and its way to the disk. Each has its own outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    SessionClosed,
    SessionExpired,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.store.batch import first_batch
from stateroom.store.contract import Commit, Snapshot
from stateroom.store.postgresql.pool import Pool
from stateroom.store.postgresql.statements import Statements
from stateroom.store.postgresql.values import (
    BYTES,
    NO_ITEM,
    REAL,
    TRUTH,
    WHOLE,
    Value,
    array,
    bytes_item,
    real_item,
    text_item,
    truth_item,
    whole,
    whole_item,
)

MOST = 256
"""How many appends are one batch at most."""
MOST_BYTES = 16 * 1024 * 1024
"""About how many bytes they have at most."""

_COLUMNS = (BYTES, WHOLE, WHOLE, BYTES, REAL, BYTES, BYTES, REAL, TRUTH)
"""Of what every append has, the types: session, revision, fence, kind, time, body, call id, expiry, closing."""


class Append:
    """An append that waits to be written."""

    __slots__ = ("blobs", "done", "entry", "row", "session", "snapshot", "weight")

    def __init__(self, commit: Commit, done: asyncio.Future[None]) -> None:
        entry = commit.entry
        self.session = commit.session
        self.entry = entry
        self.row = (
            text_item(commit.session),
            whole_item(entry.revision),
            whole_item(commit.fence),
            text_item(entry.kind),
            real_item(entry.at),
            bytes_item(entry.body),
            text_item(entry.call_id),
            real_item(commit.expires),
            truth_item(commit.closes),
        )
        self.snapshot = commit.snapshot
        self.blobs = commit.blobs
        self.done = done
        self.weight = len(entry.body)
        if commit.snapshot is not None:
            self.weight += len(commit.snapshot.body)
        if commit.blobs:
            self.weight += sum(map(len, commit.blobs.values()))


_row = attrgetter("row")


class Appends:
    """The appends of one store, on their way."""

    def __init__(self, pool: Pool, sql: Statements) -> None:
        self._pool = pool
        self._sql = sql
        self._waiting: list[Append] = []
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None

    def add(self, append: Append) -> None:
        """Have an append written, with all that come up in this turn of the loop."""
        self._waiting.append(append)
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all())

    async def finish(self) -> None:
        """Wait until none is under way."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        most = first_batch(len(self._waiting))
        try:
            while self._waiting:
                await self._write(self._take(most))
                most = MOST
        except BaseException as error:  # without an answer the callers wait for ever
            left, self._waiting = self._waiting, []
            _fail(left, _stopped(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._sending = None

    def _take(self, most: int) -> list[Append]:
        """The next batch, at most one of each session, in an order of their ids that is the same for every worker."""
        batch: dict[str, Append] = {}
        rest: list[Append] = []
        weight = 0
        for append in self._waiting:
            if append.done.done():  # whoever asked has stopped waiting
                continue
            if append.session in batch or len(batch) >= most or (batch and weight + append.weight > MOST_BYTES):
                rest.append(append)
            else:
                batch[append.session] = append
                weight += append.weight
        self._waiting = rest
        return sorted(batch.values(), key=_row)

    async def _write(self, batch: Sequence[Append]) -> None:
        """Write a batch, and if the server cannot do with one of them, each for itself."""
        if not batch:
            return
        try:
            async with self._pool.link() as link:
                if len(batch) == 1:
                    ((letters,),) = await link.ask(self._sql.append_one, _one(batch[0]))
                else:
                    ((letters,),) = await link.ask(self._sql.append, _many(batch))
            _report(batch, letters)
        except StoreError as error:
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                _fail(batch, error)
                return
            for append in batch:
                await self._write([append])
        except BaseException as error:
            _fail(batch, _stopped(error))
            if not isinstance(error, Exception):
                raise


def _one(append: Append) -> list[Value]:
    """The parameters of the statement that writes one."""
    values: list[Value] = [None if item is NO_ITEM else item[4:] for item in append.row]
    snapshot = append.snapshot
    values += (None, None) if snapshot is None else (whole(snapshot.revision), snapshot.body)
    values += _blob_columns([append])[:2]
    return values


def _many(batch: Sequence[Append]) -> list[Value]:
    """The parameters of the statement that writes several."""
    columns = zip(*map(_row, batch), strict=True)
    values: list[Value] = [array(of, items) for of, items in zip(_COLUMNS, columns, strict=True)]
    values += _snapshot_columns([append.snapshot for append in batch])
    values += _blob_columns(batch)
    return values


def _snapshot_columns(snapshots: Sequence[Snapshot | None]) -> list[Value]:
    if not any(snapshots):
        return [None, None]
    return [
        array(WHOLE, [NO_ITEM if snapshot is None else whole_item(snapshot.revision) for snapshot in snapshots]),
        array(BYTES, [NO_ITEM if snapshot is None else bytes_item(snapshot.body) for snapshot in snapshots]),
    ]


def _blob_columns(batch: Sequence[Append]) -> list[Value]:
    """The digests and bodies of all, and where those of each end."""
    if not any(append.blobs for append in batch):
        return [None, None, None]
    return [
        array(BYTES, [text_item(digest) for append in batch for digest in append.blobs]),
        array(BYTES, [bytes_item(body) for append in batch for body in append.blobs.values()]),
        array(WHOLE, [whole_item(last) for last in accumulate(len(append.blobs) for append in batch)]),
    ]


def _stopped(error: BaseException) -> StoreError:
    stopped = StoreError(f"PostgreSQL: the append was given up because of an unexpected {error!r}")
    stopped.__cause__ = error
    return stopped


def _fail(batch: Sequence[Append], error: Exception) -> None:
    for append in batch:
        if not append.done.done():
            append.done.set_exception(error)


def _report(batch: Sequence[Append], letters: str) -> None:
    for append, letter in zip(batch, letters, strict=True):
        if append.done.done():
            continue
        if letter == ".":
            append.done.set_result(None)
        else:
            append.done.set_exception(_refusal(append, letter))


def _refusal(append: Append, letter: str) -> StateroomError:
    session, entry = append.session, append.entry
    match letter:
        case "u":
            return UnknownSession(session)
        case "c":
            return SessionClosed(session)
        case "e":
            return SessionExpired(session)
        case "d":
            return DuplicateCall(session, str(entry.call_id))
        case _:
            return Conflict(session, entry.revision - 1)
