"""`WorkerPool`: the workers of a run, in this process, in processes on this machine, or on a Ray cluster.

It assigns rows to workers, and collects the result of each row exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Self

from stateroom.errors import EngineFailed, InvalidOption, needs
from stateroom.model import LocalLimiter, ModelLimits
from stateroom.pauses import Pauses
from stateroom.rollout.engines.engine import (
    Ack,
    Assign,
    Engine,
    Finished,
    FromWorker,
    ToolFailed,
    ToWorker,
    Worker,
    WorkerLost,
)
from stateroom.rollout.engines.permits import AboutRequest, Permits
from stateroom.rollout.engines.worker import Heartbeat, Link, open_worker
from stateroom.rollout.plan import RunPlan
from stateroom.rollout.rows import Key, Row, key_of

logger = logging.getLogger(__name__)

Collect = Callable[[Finished | ToolFailed], None]

MAX_LOSSES = 5
"""The most workers that may be lost in a row without a finished episode in between."""

PAUSES = Pauses(first=0.8, longest=10.0)
"""The pauses before a lost worker is replaced, by the number lost in a row."""

ROWS_AHEAD = 2
"""Rows queued at a worker for each row that it finished since the last assignment, so it never waits for its driver."""


class LocalEngine(Engine):
    """A single worker in this process."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan, 1)

    async def start(self) -> Worker:
        return await self.resources.enter_async_context(open_worker(self.plan, self.slots, Link(Heartbeat())))


def _open_engine(plan: RunPlan) -> Engine:
    """The engine of a plan."""
    kind, _, rest = plan.options.engine.partition(":")
    match kind:
        case "local" if not rest:
            return LocalEngine(plan)
        case "processes" if not rest or (rest.isdecimal() and int(rest)):
            from stateroom.rollout.engines.processes import ProcessEngine  # noqa: PLC0415 - not for a local run

            return ProcessEngine(plan, int(rest) if rest else None)
        case "ray":
            with needs("the engine ray", "ray"):
                from stateroom.rollout.engines.ray import RayEngine  # noqa: PLC0415 - an extra
            return RayEngine(plan, rest or None)
    raise InvalidOption(
        "engine", f"unknown engine {plan.options.engine!r}; choose local, processes, processes:N, ray or ray:ADDRESS"
    )


class WorkerPool:
    """The workers of a plan. Use it as an async context manager, which starts the first worker."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._engine = _open_engine(plan)
        self._limiter = LocalLimiter(plan.options.model_limits or ModelLimits())
        self._first: Worker | None = None
        self._left: Iterator[Assign] = iter(())
        self._again: deque[Assign] = deque()
        """Rows of lost workers."""
        self._given = 0
        """The number of rows assigned to workers."""
        self._losses = 0
        self._changed = asyncio.Event()
        self._may_start: Callable[[], bool] | None = None

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        try:
            self._first = await self._engine.start()
        except BaseException as error:
            await self._engine.__aexit__()
            if isinstance(error, WorkerLost):
                raise EngineFailed(f"no worker could be started: {error}") from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.__aexit__()

    async def run(
        self, rows: Iterable[Row], collect: Collect, *, resumes: bool, may_start: Callable[[], bool] | None = None
    ) -> None:
        """Run the episodes of all rows. `collect` is called with the messages of workers, and writes rows.

        With `resumes`, an earlier process may have begun them. No episode starts once `may_start` returns False.
        """
        self._may_start = may_start
        self._left = (Assign(batch, resumes) for batch in self._batches(rows))
        self._collect = collect
        first, self._first = self._first, None
        tasks = [asyncio.create_task(self._employ(worker)) for worker in (first, *[None] * (self._engine.workers - 1))]
        try:
            # The first worker ends when all rows are done.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    def _batches(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """Rows as they are assigned: groups together, others one by one."""
        if self._plan.options.group is None:
            return ([row] for row in rows)
        return ([*members] for _, members in groupby(rows, lambda row: row["_ng_task_index"]))

    async def _employ(self, worker: Worker | None) -> None:
        """Keep a worker busy until all rows are done; replace it if it is lost."""
        while True:
            given: dict[Key, Row] = {}
            try:
                worker = worker or await self._engine.start()
                return await self._feed(worker, given)
            except WorkerLost as error:
                self._losses += 1
                if self._losses > MAX_LOSSES:
                    why = f"{self._losses} workers were lost in a row"
                    raise EngineFailed(
                        f"{why}, most recently: {error}; finished episodes are kept, so resume the run"
                    ) from error
                logger.warning("%s; its %d episodes continue elsewhere", error, len(given))
                self._return(given)
            finally:
                if worker is not None:
                    await worker.stop()
            worker = None
            await asyncio.sleep(PAUSES.after(self._losses))

    async def _feed(self, worker: Worker, given: dict[Key, Row]) -> None:
        """Assign rows to a worker, and collect its results, until all rows are done."""
        permits = Permits(self._limiter, worker.send)
        slots = self._engine.slots
        written: list[Key] = []
        try:
            while True:
                ahead = max(slots, ROWS_AHEAD * len(written)) if self._may_start is None else 0
                rows = self._take(given, slots + ahead)
                messages: list[ToWorker] = [Ack(written), *rows] if written else [*rows]
                if messages:
                    await worker.send(messages)
                if given:
                    written = self._collected(await worker.receive(), given, permits)
                elif self._given:
                    written = []
                    await self._changed.wait()
                else:
                    return
        finally:
            permits.close()

    def _take(self, given: dict[Key, Row], most: int) -> Iterator[Assign]:
        """Rows for a worker, up to its share."""
        while len(given) < most:
            batch = self._again.popleft() if self._again else self._next()
            if batch is None:
                return
            given.update((key_of(row), row) for row in batch.rows)
            self._given += len(batch.rows)
            yield batch

    def _next(self) -> Assign | None:
        return next(self._left, None) if self._may_start is None or self._may_start() else None

    def _collected(self, messages: Iterable[FromWorker], given: dict[Key, Row], permits: Permits) -> list[Key]:
        """Collect the messages of a worker; returns the episodes whose rows are now written."""
        written: list[Key] = []
        for message in messages:
            if isinstance(message, AboutRequest):
                permits.hear(message)
                continue
            self._collect(message)
            if isinstance(message, Finished):
                del given[message.key]
                self._losses = 0
                written.append(message.key)
        self._given -= len(written)
        if not self._given:
            self._wake()
        return written

    def _return(self, given: dict[Key, Row]) -> None:
        """Take back the rows of a lost worker."""
        self._given -= len(given)
        self._again.extend(Assign(batch, resumes=True) for batch in self._batches(given.values()))
        self._wake()

    def _wake(self) -> None:
        """Wake workers without rows."""
        self._changed.set()
        self._changed = asyncio.Event()
