"""Group commit: appends to different sessions that come together, or while a batch is under way, are one statement.

So they share the round trip and the server's write to disk. Each has its own outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from stateroom.errors import StoreError, StoreUnavailable
from stateroom.store.concurrency import answer, first_batch
from stateroom.store.postgresql import binary
from stateroom.store.postgresql.binary import BYTES, REAL, TRUTH, WHOLE, Value, array, real, text, whole
from stateroom.store.postgresql.connection import Pool
from stateroom.store.postgresql.statements import Statements
from stateroom.store.records import Commit, refusal

MAX_BATCH = 256
"""Most appends in a batch."""
MOST_BYTES = 16 * 1024 * 1024
"""About the most bytes in a batch."""

_COLUMNS = (BYTES, WHOLE, WHOLE, BYTES, REAL, BYTES, BYTES, REAL, TRUTH, BYTES, REAL, WHOLE, BYTES)
"""Types of the columns of `PendingAppend.row`."""


class PendingAppend:
    """An append that waits to be written."""

    __slots__ = ("blobs", "done", "entry", "row", "session", "weight")

    def __init__(self, commit: Commit, done: asyncio.Future[None]) -> None:
        entry, snapshot = commit.entry, commit.snapshot
        self.session = commit.session
        self.entry = entry
        self.row: tuple[Value, ...] = (
            text(commit.session),
            whole(entry.revision),
            whole(commit.fence),
            text(entry.kind),
            real(entry.at),
            entry.body,
            binary.text_or_none(entry.call_id),
            binary.real_or_none(commit.expires),
            binary.truth(commit.closes),
            binary.text_or_none(commit.phase),
            binary.real_or_none(commit.reward),
            *((None, None) if snapshot is None else (whole(snapshot.revision), snapshot.body)),
        )
        self.blobs = commit.blobs
        self.done = done
        self.weight = len(entry.body) + (0 if snapshot is None else len(snapshot.body))
        if commit.blobs:
            self.weight += sum(map(len, commit.blobs.values()))


_row = attrgetter("row")


class Appends:
    """The appends of one store, in batches."""

    def __init__(self, pool: Pool, sql: Statements) -> None:
        self._pool = pool
        self._sql = sql
        self._waiting: list[PendingAppend] = []
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None

    def add(self, append: PendingAppend) -> None:
        """Write an append, with all others of this iteration of the event loop."""
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
                most = MAX_BATCH
        except BaseException as error:  # without an answer the callers wait forever
            left, self._waiting = self._waiting, []
            _fail(left, _stopped(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._sending = None

    def _take(self, most: int) -> list[PendingAppend]:
        """The next batch, at most one append of each session, sorted by id, as every worker does it."""
        batch: dict[str, PendingAppend] = {}
        rest: list[PendingAppend] = []
        weight = 0
        for append in self._waiting:
            if append.done.done():  # the caller has stopped waiting
                continue
            if append.session in batch or len(batch) >= most or (batch and weight + append.weight > MOST_BYTES):
                rest.append(append)
            else:
                batch[append.session] = append
                weight += append.weight
        self._waiting = rest
        return sorted(batch.values(), key=attrgetter("session"))

    async def _write(self, batch: Sequence[PendingAppend]) -> None:
        """Write a batch; if the server refuses one of them, write each alone."""
        if not batch:
            return
        try:
            async with self._pool.link() as link:
                if len(batch) == 1:
                    ((words,),) = await link.ask(self._sql.append_one, _one(batch[0]))
                else:
                    ((words,),) = await link.ask(self._sql.append, _many(batch))
            _report(batch, words.split())
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


def _one(append: PendingAppend) -> list[Value]:
    """The parameters of the statement for one append."""
    return [*append.row, *(binary.blob_columns(append.blobs.items()) if append.blobs else (None, None))]


def _many(batch: Sequence[PendingAppend]) -> list[Value]:
    """The parameters of the statement for several appends."""
    columns = zip(_COLUMNS, zip(*map(_row, batch), strict=True), strict=True)
    values = [None if column.count(None) == len(batch) else array(of, column) for of, column in columns]
    if not any(append.blobs for append in batch):
        return [*values, None, None, None]
    values += binary.blob_columns(blob for append in batch for blob in append.blobs.items())
    values.append(array(WHOLE, map(whole, accumulate(len(append.blobs) for append in batch))))
    return values


def _stopped(error: BaseException) -> StoreError:
    stopped = StoreError(f"PostgreSQL: the append failed with an unexpected {error!r}")
    stopped.__cause__ = error
    return stopped


def _fail(batch: Sequence[PendingAppend], error: Exception) -> None:
    for append in batch:
        answer(append.done, error=error)


def _report(batch: Sequence[PendingAppend], words: Sequence[str]) -> None:
    for append, word in zip(batch, words, strict=True):
        answer(append.done, error=None if word == "done" else refusal(word, append.session, append.entry))
