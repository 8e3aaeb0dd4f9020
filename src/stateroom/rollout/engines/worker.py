"""`EpisodeWorker`: runs the episodes that a driver gives it, in any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from stateroom.rollout.backend import EpisodeSession, open_transcripts
from stateroom.rollout.engines.heartbeat import GuardedSession, GuardedSource, Heartbeat
from stateroom.rollout.engines.messages import Ack, Assign, Finished, FromWorker, Permitted, ToolFailed, ToWorker
from stateroom.rollout.engines.permits import DriversLimiter
from stateroom.rollout.engines.start import Starter, take_over
from stateroom.rollout.episode import Ended, Start, Started, close_quietly, run_episode
from stateroom.rollout.failures import WatchedSession, cause_line
from stateroom.rollout.plan import Run
from stateroom.rollout.rows import COST, Key, Row, key_of


class Link:
    """What ties a worker to its driver: what it has to tell, the driver's limiter, and its heartbeat."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self.limiter = DriversLimiter(self.tell)
        self._told: list[FromWorker] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def tell(self, message: FromWorker) -> None:
        self._told.append(message)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Say that the worker cannot go on."""
        self._error = error
        self._news.set()

    async def take(self) -> Sequence[FromWorker]:
        """What there is to tell, when there is something."""
        await self._news.wait()
        if self._error is not None:
            raise self._error
        self._news.clear()
        told, self._told = self._told, []
        return told


@asynccontextmanager
async def open_worker(plan: Run, slots: int, link: Link) -> AsyncIterator[EpisodeWorker]:
    """A worker on the plan's store or server, which runs `slots` episodes at a time."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plan.model)
        backend = await stack.enter_async_context(plan.backend(forks=plan.options.group is not None))
        transcripts = None
        if plan.keeps_transcripts:
            transcripts = await stack.enter_async_context(open_transcripts(plan.store, plan.environment.lifecycle))
        worker = EpisodeWorker(plan, Starter(plan, backend, transcripts), slots, link)
        stack.push_async_callback(worker.stop)
        yield worker


class EpisodeWorker:
    """Runs episodes, and tells what comes of each. In the driver's own process it is the `Worker` itself."""

    def __init__(self, plan: Run, starter: Starter, slots: int, link: Link) -> None:
        self._plan = replace(plan, model=GuardedSource(plan.model, link.heartbeat))
        self._starter = starter
        self._link = link
        self._waiting: asyncio.Queue[tuple[Row, Start, bool]] = asyncio.Queue()
        """Rows with the function that starts each, and whether another worker may have begun it."""
        self._sessions: dict[Key, EpisodeSession] = {}
        """The sessions of episodes that have ended, until their rows are written."""
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(slots)]

    async def send(self, messages: Sequence[ToWorker]) -> None:
        for message in messages:
            match message:
                case Assign():
                    for row, start in self._starter.starts(message.rows, resumes=message.resumes):
                        self._waiting.put_nowait((row, start, message.resumes))
                case Ack():
                    self._close(message.keys)
                case Permitted():
                    self._link.limiter.hear(message)

    async def receive(self) -> Sequence[FromWorker]:
        return await self._link.take()

    async def stop(self) -> None:
        """Interrupt the episodes, and close the sessions of those that are written."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while True:
                row, start, resumes = await self._waiting.get()
                self._finish(row, await self._run(row, start, resumes))
        except Exception as error:  # noqa: BLE001 - what an episode does wrong is in its row: this is a fault of ours
            self._link.fail(error)

    async def _run(self, row: Row, start: Start, resumes: bool) -> Ended:
        async with AsyncExitStack() as leases:

            async def hold() -> Started:
                started = await start()
                if resumes:
                    await take_over(started, self._plan.lease, leases)
                return started._replace(session=GuardedSession(started.session, self._link.heartbeat))

            return await run_episode(self._plan, hold, row, self._watched)

    def _watched(self, session: EpisodeSession, row: Row) -> WatchedSession:
        return WatchedSession(session, row, lambda failure: self._link.tell(ToolFailed(failure)))

    def _finish(self, row: Row, ended: Ended) -> None:
        key, failed = key_of(row), ended.failed
        if ended.session is not None:
            self._sessions[key] = ended.session
        error = cause_line(ended.row) if failed else None
        transient, cost = failed and not ended.row["_ng_failure_terminal"], ended.row.get(COST, 0.0)
        self._link.tell(Finished(key, ended.line, error, transient, ended.waits_in, cost))

    def _close(self, keys: Iterable[Key]) -> None:
        """Close sessions whose rows are written: until then their episodes could be resumed."""
        for key in keys:
            if (session := self._sessions.pop(key, None)) is not None:
                task = asyncio.create_task(close_quietly(session))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
