"""The runner: collects episodes, and loses none that finished, nor what was done in those that did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from stateroom.agent import AgentLog, Times, Workspace, act, recall
from stateroom.errors import CannotWrite, JudgeFailed, ModelFailed, SessionError, StateroomError
from stateroom.jsonl import Appender, line_of
from stateroom.rollout.backend import Backend, EpisodeSession, Transcripts, open_transcripts
from stateroom.rollout.description import described
from stateroom.rollout.failures import ToolFailures, cause_line
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.plan import EPOCH, Plan
from stateroom.rollout.resume import Left, what_is_left
from stateroom.rollout.rows import (
    INDICES,
    PARENT,
    SESSION,
    TIMES,
    TRANSIENT,
    Key,
    Row,
    failure_fields,
    given_row,
    key_of,
    response_fields,
    verdict_fields,
)
from stateroom.session import Verdict, contained, new_session_id

T = TypeVar("T")


@dataclass(frozen=True)
class Run(Plan):
    """A run of episodes."""

    repeats: int = 1
    """Episodes per task, each with a random seed of its own."""
    group: int | None = None
    """Episodes per task, forked from one seeded session (same state and random seed), instead of `repeats`."""
    resume: bool = False
    """Continue the run of the same files: its unfinished episodes, from where each was interrupted."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are in this run's store."""
        return self.server is None and self.environment.state_type is not None

    @property
    def keeps_transcripts(self) -> bool:
        """Whether only what the agents say is in this run's store."""
        return not self.keeps_sessions and self.group is None and not self.store.startswith("memory:")

    def inputs(self) -> list[Row]:
        """The rows to run: the first `limit` tasks, with all episodes of a task in sequence.

        Each names its session, so that the session can be found again.
        """
        rows = self.inputs_for(self.repeats if self.group is None else self.group)
        if self.keeps_sessions or self.keeps_transcripts:
            rows = [{**row, SESSION: new_session_id()} for row in rows]
        if self.keeps_sessions and self.group is not None:
            parents = [new_session_id() for _ in self.tasks]
            rows = [{**row, PARENT: {"session": parents[row["_ng_task_index"]], "revision": 1}} for row in rows]
        return rows

    def seed_for(self, row: Row) -> int:
        """The random seed of a row's episode; without indices it follows from the session's id."""
        return self.seed_of(*(key_of(row) if set(INDICES) <= row.keys() else (row[SESSION],)))


@dataclass
class Report:
    """The results of a run."""

    episodes: int
    tool_failures: ToolFailures
    """Tool calls that failed because of the author's code."""
    failed: int = 0
    waiting: list[str] = field(default_factory=list)
    """The sessions whose agents wait for input."""
    rows: list[Row] = field(default_factory=list)
    """The finished episodes: the measurements of each, its indices and its session."""
    first_error: str | None = None
    """The error of the first episode that failed, with its place in the author's code, if that is known."""
    metrics: dict[str, Any] = field(default_factory=dict)
    earlier: int = 0
    """How many of the finished episodes an earlier process has run."""
    elapsed: float = 0.0
    """Seconds that this process took."""


async def run(
    plan: Run,
    on_episode: Callable[[Row], None] = lambda row: None,
    on_start: Callable[[Left], None] = lambda left: None,
) -> Report:
    """Run all episodes, `concurrency` at a time, and write each as it ends.

    `on_start` is called with what there is to do, and `on_episode` with each row that is done.
    """
    async with AsyncExitStack() as stack:
        resumes = plan.resume and plan.files.begun  # else it never began, and starts
        if resumes:
            stack.enter_context(plan.files.lock())
            left = what_is_left(plan.files, plan.model.name)
            _refuse_other_groups(plan, left.rows)
        else:
            left = Left(plan.inputs())
            plan.check_model(left.rows)
            plan.files.prepare(force=plan.force, resume=plan.resume)
        on_start(left)
        started = perf_counter()
        failures = stack.enter_context(ToolFailures(plan.files.tool_failures))
        report = Report(left.episodes, failures, failed=left.failed, rows=[*left.done], earlier=len(left.done))
        await stack.enter_async_context(plan.model)
        backend = await stack.enter_async_context(plan.backend(forks=plan.group is not None))
        transcripts = None
        if plan.keeps_transcripts:
            store = open_transcripts(plan.store, plan.environment.lifecycle)
            transcripts = await stack.enter_async_context(store)
        if not resumes:
            plan.files.begin(left.rows)
            stack.enter_context(plan.files.lock())
        tasks = {key_of(row)[0] for row in (*left.rows, *left.done)}
        stack.enter_context(described(plan, len(tasks), left.episodes, repeats=plan.repeats, group=plan.group))
        await _Runner(plan, backend, transcripts, report, on_episode).run(left.rows)
        report.metrics = aggregate(report.rows, plan.solved_at) | failures.metrics()
        plan.files.write_metrics(plan.agent, report.metrics)
        report.elapsed = perf_counter() - started
    return report


def _refuse_other_groups(plan: Run, rows: list[Row]) -> None:
    """Refuse to resume a run with --group without it, or the reverse."""
    if plan.keeps_sessions and any((PARENT in row) != (plan.group is not None) for row in rows):
        how = "without" if plan.group is not None else "with"
        raise CannotWrite(f"{plan.files.inputs} is of a run {how} --group; resume it {how} --group")


async def run_all(jobs: Iterable[T], workers: int, do: Callable[[T], Awaitable[None]]) -> None:
    """Do all jobs, `workers` at a time. Jobs are taken as workers become free; the first error ends all."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:  # shared
            await do(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
    except ExceptionGroup as error:
        raise error.exceptions[0] from None


class Started(NamedTuple):
    """An episode's session, and where its agent's transcript is kept."""

    session: EpisodeSession
    transcript: AgentLog


Start = Callable[[], Awaitable[Started]]

Watch = Callable[[EpisodeSession, Row], Workspace]


class Ended(NamedTuple):
    """An episode that ended, or waits."""

    row: Row
    line: bytes = b""
    measured: Row | None = None
    """None when it failed."""
    waits_in: str | None = None
    """The session, when it waits for input."""
    session: EpisodeSession | None = None
    """The session to close."""


class _Runner:
    """Runs the episodes of a plan on a backend."""

    def __init__(
        self,
        plan: Run,
        backend: Backend,
        transcripts: Transcripts | None,
        report: Report,
        on_episode: Callable[[Row], None],
    ) -> None:
        self._plan = plan
        self._backend = backend
        self._transcripts = transcripts
        self._report = report
        self._on_episode = on_episode

    async def run(self, rows: list[Row]) -> None:
        """Run the episodes of these rows, and write each as it ends."""
        plan, report = self._plan, self._report
        with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

            async def collect(job: tuple[Row, Start]) -> None:
                row, start = job
                ended = await run_episode(plan, start, row, report.tool_failures.watch)
                if ended.waits_in is not None:
                    report.waiting.append(ended.waits_in)
                elif ended.measured is None:
                    failures.write(ended.line)
                    report.failed += 1
                    report.first_error = report.first_error or cause_line(ended.row)
                else:
                    rollouts.write(ended.line)
                    report.rows.append(ended.measured)
                if ended.session is not None:  # not before the row is written: until then the episode can be resumed
                    await close_quietly(ended.session)
                self._on_episode(ended.row)

            await run_all(self._starts(rows), min(plan.concurrency, len(rows)), collect)

    # Starting.

    def _starts(self, rows: list[Row]) -> Iterator[tuple[Row, Start]]:
        """Each row with the function that starts its episode. A group is seeded when its first episode starts."""
        if self._plan.group is None:
            yield from ((row, partial(self._start, row)) for row in rows)
            return
        for _, members in groupby(rows, lambda row: row["_ng_task_index"]):
            group = _Group([*members], self._backend, self._seed_or_find, self._find)
            yield from ((row, partial(group.start, row)) for row in group.rows)

    async def _start(self, row: Row) -> Started:
        """Seed an episode, or find what there is of one that was interrupted."""
        if self._transcripts is None or SESSION not in row:
            session = await self._seed_or_find(row)
            return Started(session, session.agent)
        transcript = await self._transcripts.find(row) if self._plan.resume else None
        found = None if transcript is None else await self._find(row)
        if transcript is not None and found is not None:
            return Started(found, transcript)
        session = await self._seed(row)
        return Started(session, await self._transcripts.begin(row))

    async def _seed_or_find(self, row: Row) -> EpisodeSession:
        return await self._find(row) or await self._seed(row)

    async def _seed(self, row: Row) -> EpisodeSession:
        return await self._backend.seed(row, seed=self._plan.seed_for(row), began=EPOCH)

    async def _find(self, row: Row) -> EpisodeSession | None:
        if not self._plan.resume or SESSION not in row:
            return None
        return await self._backend.find(row, seed=self._plan.seed_for(row), began=EPOCH)


async def run_episode(plan: Run, start: Start, row: Row, watch: Watch = lambda session, row: session) -> Ended:
    """Run one episode, from its start or from where it was interrupted; if it fails, its row says why.

    `watch` gives the workspace in which the agent calls the tools of a session.
    """
    began = perf_counter()
    started: Started | None = None
    try:
        with contained:
            started = await start()
            return await _act_and_verify(plan, started, row, began, watch)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        session = None if started is None else started.session
        known = given_row(row) if session is None else row  # else the row names a session that was not seeded
        failure = {**known, **failure_fields(error), **session_fields(session)}
        if session is None and isinstance(error, SessionError):  # it exists, and with another plan it may continue
            failure["_ng_failure_terminal"] = False
        return Ended(failure, line_of(failure), session=None if isinstance(error, TRANSIENT) else session)


async def _act_and_verify(plan: Run, started: Started, row: Row, began: float, watch: Watch) -> Ended:
    session, transcript = started
    seed, tools = plan.seed_for(row), plan.tools_for(row)
    before = await recall(transcript)
    workspace = watch(session, {**row, **session_fields(session)})
    trajectory = await act(workspace, transcript, plan.new_agent(row, seed), tools, plan.items_of(row))
    trajectory = trajectory.following(before)
    if trajectory.status == "waiting":
        return Ended(row, waits_in=session.id)
    if trajectory.status == "failed":  # in an earlier process, which did not write its row
        raise ModelFailed(trajectory.reason)
    response = plan.response(trajectory, tools, seed)
    try:
        verdict = await session.verify(response)
    except JudgeFailed as error:  # its row has all that a later verdict needs
        spent = time_fields(began, trajectory.times, before.times) | plan.cost_of(response)
        failure = {**row, "response": response, **spent, **failure_fields(error), **session_fields(session)}
        return Ended(failure, line_of(failure))
    measured = {
        **measured_fields(row, session, verdict, response),
        **plan.cost_of(response),
        **time_fields(began, trajectory.times, before.times),
    }
    done = {**row, **measured, "response": response}
    return Ended(done, line_of(done), measured, session=session)


class _Group:
    """Episodes of one task: when the first of them starts, one session is seeded and forked for all."""

    def __init__(
        self,
        rows: Sequence[Row],
        backend: Backend,
        seed: Callable[[Row], Awaitable[EpisodeSession]],
        find: Callable[[Row], Awaitable[EpisodeSession | None]],
    ) -> None:
        self.rows = rows
        self._backend = backend
        self._seed = seed
        self._find = find
        self._lock = asyncio.Lock()
        self._sessions: dict[Key, EpisodeSession] | None = None
        self._failure: Exception | None = None

    async def start(self, row: Row) -> Started:
        """Start a member. If the group could not be seeded, every member raises the same error."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._sessions is None:
                try:
                    self._sessions = await self._start_all()
                except Exception as error:
                    self._failure = error
                    raise
            session = self._sessions.pop(key_of(row))
            return Started(session, session.agent)

    async def _start_all(self) -> dict[Key, EpisodeSession]:
        found = {key_of(row): await self._find(row) for row in self.rows}
        new = [row for row in self.rows if found[key_of(row)] is None]
        forks = dict(zip(map(key_of, new), await self._fork(new) if new else (), strict=True))
        return {key: session or forks[key] for key, session in found.items()}

    async def _fork(self, rows: Sequence[Row]) -> Sequence[EpisodeSession]:
        """New sessions for rows, which may name them and their parent."""
        origin = rows[0].get(PARENT)
        row = {**given_row(rows[0]), "_ng_rollout_index": 0}
        parent = await self._seed(row if origin is None else {**row, SESSION: origin["session"]})
        try:
            if origin is None:
                return await self._backend.fork(parent, len(rows))
            return await self._backend.fork(parent, len(rows), origin["revision"], [row[SESSION] for row in rows])
        finally:
            await parent.close()  # a closed session can be forked, but not changed


async def close_quietly(session: EpisodeSession) -> None:
    """Close the session of an episode that is over, so that it releases its resources; else it expires."""
    with suppress(StateroomError):
        await session.close()


def measured_fields(row: Row, session: EpisodeSession, verdict: Verdict, response: Row) -> Row:
    """The measurements of an episode that ended, with its indices and its session."""
    return {
        **verdict_fields(verdict),
        **response_fields(response),
        **{name: row[name] for name in INDICES if name in row},
        **session_fields(session),
    }


def time_fields(began: float, times: Times, before: Times) -> Row:
    """The field of a row with the times of an episode, of which an earlier process may have run a part.

    Of that part, only the model's and the tools' times are known.
    """
    wall = perf_counter() - began + before.model + before.tool
    return {TIMES: {"wall": round(wall, 6), "model": times.model, "tool": times.tool}}


def session_fields(session: EpisodeSession | None) -> Row:
    """The fields of a row that name its session and the session's parent, if they are known."""
    found: Row = {}
    if session is not None and session.id is not None:
        found[SESSION] = session.id
    if session is not None and session.parent is not None:
        found[PARENT] = dict(zip(("session", "revision"), session.parent, strict=True))
    return found
