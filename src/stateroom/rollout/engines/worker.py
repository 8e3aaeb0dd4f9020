"""`EpisodeWorker`: runs the episodes that a driver assigns to it, in any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, cast

from stateroom.agent import AgentLog, Outcome, WrappedWorkspace
from stateroom.errors import SessionClosed, SessionExpired, SessionLeased, StateroomError, StoreError
from stateroom.model import NO_ROW, Answer, Model, ModelSource, Request
from stateroom.rollout.backend import Backend, EpisodeSession, Transcripts, open_transcripts
from stateroom.rollout.engines.engine import Ack, Assign, Finished, FromWorker, ToolFailed, ToWorker
from stateroom.rollout.engines.permits import DriversLimiter, Permitted
from stateroom.rollout.episode import EpisodeEnd, EpisodeStart, Start, close_quietly, run_episode
from stateroom.rollout.failures import WatchedSession, cause_line
from stateroom.rollout.plan import EPOCH, RunPlan
from stateroom.rollout.rows import COST, PARENT, SESSION, Key, Row, given_row, key_of
from stateroom.session import Session, Verdict

LEASE_RETRY_SECONDS = 0.2
"""The pause between two attempts to lease a session, in seconds."""


class Starter:
    """Starts the episodes of a plan."""

    def __init__(self, plan: RunPlan, backend: Backend, transcripts: Transcripts | None) -> None:
        self._plan = plan
        self._backend = backend
        self._transcripts = transcripts

    def starts(self, rows: list[Row], *, resumes: bool) -> Iterator[tuple[Row, Start]]:
        """Each row with a function that starts its episode. A group is seeded when its first episode starts.

        With `resumes`, another worker may have begun the episodes.
        """
        find = self._find if resumes else _find_none
        if self._plan.options.group is None:
            yield from ((row, partial(self._start, row, find)) for row in rows)
            return
        group = _Group(rows, self._backend, partial(self._find_or_seed, find=find), find)
        yield from ((row, partial(self._start_member, row, group)) for row in rows)

    async def _start(self, row: Row, find: Find) -> EpisodeStart:
        if self._transcripts is None or SESSION not in row:
            return self._started(await self._find_or_seed(row, find))
        session = await find(row)
        transcript = None if session is None else await self._transcripts.find(row)
        if session is None or transcript is None:  # or the transcript belongs to a lost session
            session, transcript = await self._seed(row), await self._transcripts.begin(row)
        return EpisodeStart(session, transcript.agent, transcript)

    async def _start_member(self, row: Row, group: _Group) -> EpisodeStart:
        return self._started(await group.session_of(row))

    def _started(self, session: EpisodeSession) -> EpisodeStart:
        return EpisodeStart(
            session, session.agent, cast("Session[Any]", session) if self._plan.keeps_sessions else None
        )

    async def _find_or_seed(self, row: Row, find: Find) -> EpisodeSession:
        if (session := await find(row)) is not None:
            return session
        try:
            return await self._seed(row)
        except StoreError:  # the previous worker may have been first after all
            if (session := await find(row)) is None:
                raise
            return session

    async def _seed(self, row: Row) -> EpisodeSession:
        return await self._backend.seed(row, seed=self._plan.seed_of_row(row), began=EPOCH)

    async def _find(self, row: Row) -> EpisodeSession | None:
        if SESSION not in row:
            return None
        return await self._backend.find(row, seed=self._plan.seed_of_row(row), began=EPOCH)


Find = Callable[[Row], Awaitable[EpisodeSession | None]]


async def _find_none(row: Row) -> None:
    """The session of an episode that has not begun."""


class _Group:
    """The sessions of a group of episodes: when the first one starts, a session is seeded and forked for all."""

    def __init__(
        self, rows: Sequence[Row], backend: Backend, seed: Callable[[Row], Awaitable[EpisodeSession]], find: Find
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._seed = seed
        self._find = find
        self._lock = asyncio.Lock()
        self._sessions: dict[Key, EpisodeSession] | None = None
        self._failure: Exception | None = None

    async def session_of(self, row: Row) -> EpisodeSession:
        """The session of a member. If the group cannot be seeded, every member raises the same error."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._sessions is None:
                try:
                    self._sessions = await self._start_all()
                except Exception as error:
                    self._failure = error
                    raise
            return self._sessions.pop(key_of(row))

    async def _start_all(self) -> dict[Key, EpisodeSession]:
        begun = {key_of(row): await self._find(row) for row in self._rows}
        new = [row for row in self._rows if begun[key_of(row)] is None]
        forks = dict(zip(map(key_of, new), await self._fork(new) if new else (), strict=True))
        return {key: session or forks[key] for key, session in begun.items()}

    async def _fork(self, rows: Sequence[Row]) -> Sequence[EpisodeSession]:
        """Fork sessions for rows, which may name the sessions and their parent."""
        origin = rows[0].get(PARENT)
        row = {**given_row(rows[0]), "_ng_rollout_index": 0}
        parent = await self._seed(row if origin is None else {**row, SESSION: origin["session"]})
        try:
            if origin is None:
                return await self._backend.fork(parent, len(rows))
            return await self._backend.fork(parent, len(rows), origin["revision"], [row[SESSION] for row in rows])
        finally:
            await parent.close()  # a closed session can be forked, but not changed


async def take_over(started: EpisodeStart, seconds: float, leases: AsyncExitStack) -> None:
    """Lease the session of an episode that another worker may have begun, until a stack ends.

    The lease raises the session's fence, so later writes of the other worker are refused.
    """
    end = monotonic() + 2 * seconds
    while started.stored is not None:
        try:
            with suppress(SessionClosed, SessionExpired):  # then it can no longer change
                await leases.enter_async_context(started.stored.lease(seconds))
            return
        except SessionLeased:
            if monotonic() > end:
                raise
        await asyncio.sleep(LEASE_RETRY_SECONDS)


class Link:
    """Connects a worker to its driver: outgoing messages, the driver's limiter, and the heartbeat."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self.limiter = DriversLimiter(self.report)
        self._told: list[FromWorker] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def report(self, message: FromWorker) -> None:
        self._told.append(message)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Report that the worker cannot continue."""
        self._error = error
        self._news.set()

    async def take(self) -> Sequence[FromWorker]:
        """Wait for messages to the driver."""
        await self._news.wait()
        if self._error is not None:
            raise self._error
        self._news.clear()
        messages, self._told = self._told, []
        return messages


@asynccontextmanager
async def open_worker(plan: RunPlan, slots: int, link: Link) -> AsyncIterator[EpisodeWorker]:
    """Open a worker for the plan's store or server that runs `slots` episodes at a time."""
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
    """Runs episodes and reports their results. In the driver's process it is the `Worker` itself."""

    def __init__(self, plan: RunPlan, starter: Starter, slots: int, link: Link) -> None:
        self._plan = replace(plan, model=GuardedSource(plan.model, link.heartbeat))
        self._starter = starter
        self._link = link
        self._waiting: asyncio.Queue[tuple[Row, Start, bool]] = asyncio.Queue()
        """Rows, each with the function that starts it and whether another worker may have begun it."""
        self._sessions: dict[Key, EpisodeSession] = {}
        """The sessions of finished episodes, until their rows are written."""
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
        """Interrupt the episodes, and close the sessions of written ones."""
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

    async def _run(self, row: Row, start: Start, resumes: bool) -> EpisodeEnd:
        async with AsyncExitStack() as leases:

            async def hold() -> EpisodeStart:
                started = await start()
                if resumes:
                    await take_over(started, self._plan.lease, leases)
                return started._replace(session=GuardedSession(started.session, self._link.heartbeat))

            return await run_episode(self._plan, hold, row, self._watched)

    def _watched(self, session: EpisodeSession, row: Row) -> WatchedSession:
        return WatchedSession(session, row, lambda failure: self._link.report(ToolFailed(failure)))

    def _finish(self, row: Row, ended: EpisodeEnd) -> None:
        key, failed = key_of(row), ended.failed
        if ended.session is not None:
            self._sessions[key] = ended.session
        error = cause_line(ended.row) if failed else None
        transient, cost = failed and not ended.row["_ng_failure_terminal"], ended.row.get(COST, 0.0)
        self._link.report(Finished(key, ended.line, error, transient, ended.waits_in, cost))

    def _close(self, keys: Iterable[Key]) -> None:
        """Close sessions whose rows are written; until then their episodes can be resumed."""
        for key in keys:
            if (session := self._sessions.pop(key, None)) is not None:
                task = asyncio.create_task(close_quietly(session))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


# Heartbeats: a driver reassigns the episodes of a worker that has been silent for a while. If that worker was only
# suspended and wakes up, it must not continue them: the fence refuses its commits, but its tools and its model would
# run in vain.

HEARTBEAT_SHARE = 2 / 3
"""The share of the driver's timeout for which a worker relies on its heartbeat."""


class HeartbeatLost(StateroomError, transient=True):
    """This worker was silent for too long, and its episodes were reassigned."""


class Heartbeat:
    """Valid while the driver hears from the worker."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = seconds
        self._until = monotonic() + HEARTBEAT_SHARE * seconds

    def renew(self) -> None:
        """Record that the driver has just heard from the worker."""
        self.check()
        self._until = monotonic() + HEARTBEAT_SHARE * self._seconds

    def check(self) -> None:
        if monotonic() > self._until:
            raise HeartbeatLost("this worker was silent for too long, and its episodes were reassigned")


class GuardedSession(WrappedWorkspace):
    """The session of an episode, usable only while the worker's heartbeat is valid."""

    def __init__(self, session: EpisodeSession, heartbeat: Heartbeat) -> None:
        super().__init__(session)
        self._session = session
        self._heartbeat = heartbeat

    @property
    def id(self) -> str | None:
        return self._session.id

    @property
    def parent(self) -> tuple[str, int] | None:
        return self._session.parent

    @property
    def agent(self) -> AgentLog:
        return self._session.agent

    async def reply(self, message: str, *, call_id: str) -> str | None:
        self._heartbeat.check()
        return await super().reply(message, call_id=call_id)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        self._heartbeat.check()
        return await super().call(name, arguments, call_id=call_id)

    async def verify(self, response: Any = None) -> Verdict:
        self._heartbeat.check()
        return await self._session.verify(response)

    async def close(self) -> None:
        await self._session.close()


class GuardedModel(Model):
    """A model, usable only while the worker's heartbeat is valid."""

    def __init__(self, model: Model, heartbeat: Heartbeat) -> None:
        self.name = model.name
        self._model = model
        self._heartbeat = heartbeat

    async def answer(self, request: Request) -> Answer:
        self._heartbeat.check()
        return await self._model.answer(request)


class GuardedSource(ModelSource):
    """Gives each episode a model that is usable only while the worker's heartbeat is valid."""

    def __init__(self, source: ModelSource, heartbeat: Heartbeat) -> None:
        super().__init__(source.name, source.for_episode, source.close, connects=source.connects)
        self._source = source
        self._heartbeat = heartbeat

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        return GuardedModel(self._source.for_episode(seed, row), self._heartbeat)
