"""The runner: collects episodes, and loses none that finished, nor what was done of those that did not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from msgspec.structs import asdict

from stateroom.agent import Trajectory, act, recall
from stateroom.errors import (
    CannotWrite,
    Conflict,
    ContextOverflow,
    JudgeFailed,
    ModelFailed,
    ModelUnavailable,
    ServerUnavailable,
    SessionError,
    SessionLeased,
    StateroomError,
    StoreError,
)
from stateroom.rollout.diary import diary_world
from stateroom.rollout.files import Appender, line_of
from stateroom.rollout.group import Group, Start
from stateroom.rollout.measured import TOKENS
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.plan import EPOCH, Plan
from stateroom.rollout.resuming import Left, what_is_left
from stateroom.rollout.workers import share_out
from stateroom.rollout.world import PARENT, SESSION, Origin, Row, Seat, World, given_row
from stateroom.session import new_session_id
from stateroom.session.containment import contained

logger = logging.getLogger(__name__)

PASSING = (StoreError, ServerUnavailable, ModelUnavailable, JudgeFailed, SessionLeased, Conflict)
"""What an episode can break down of through no fault of its own: it can go on later."""


@dataclass(frozen=True)
class Run(Plan):
    """What is to be run."""

    repeats: int = 1
    """Episodes of each task, each with a luck of its own."""
    group: int | None = None
    """Episodes of each task that start from one state, luck and all, instead."""
    resume: bool = False
    """Go on with a run of the same files: with the episodes that have not finished, each where it was."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are in this run's store."""
        return self.server is None and self.environment.state_type is not None

    @property
    def keeps_diaries(self) -> bool:
        """Whether what the agents say is there by itself, because their sessions are not."""
        return not self.keeps_sessions and self.group is None and not self.store.startswith("memory:")

    def inputs(self) -> list[Row]:
        """The rows to run: the first `limit` tasks, each as often as it is to be run, in a row.

        They say which sessions they are to have, so that these can be found again.
        """
        rows = self.inputs_for(self.repeats if self.group is None else self.group)
        if self.keeps_sessions or self.keeps_diaries:
            rows = [{**row, SESSION: new_session_id()} for row in rows]
        if self.keeps_sessions and self.group is not None:
            parents = [new_session_id() for _ in self.tasks]
            rows = [{**row, PARENT: Origin(parents[row["_ng_task_index"]], 1)._asdict()} for row in rows]
        return rows

    def world(self, *, forking: bool) -> AbstractAsyncContextManager[World]:
        world = super().world(forking=forking)
        return diary_world(world, self.store, self.environment.lifecycle) if self.keeps_diaries else world


@dataclass
class Report:
    """What a run came to."""

    episodes: int
    failed: int = 0
    waiting: list[str] = field(default_factory=list)
    """The sessions whose agents wait for input."""
    rows: list[Row] = field(default_factory=list)
    """The finished episodes: what was measured in each, and its indices and session."""
    first_error: str | None = None
    """What the first episode that broke down died of."""
    metrics: dict[str, Any] = field(default_factory=dict)


async def run(
    plan: Run,
    on_episode: Callable[[Row], None] = lambda row: None,
    on_start: Callable[[Left], None] = lambda left: None,
) -> Report:
    """Run all episodes, so many at a time, writing each as it ends.

    `on_start` is told what there is to do, and `on_episode` of each that was done.
    """
    with ExitStack() as held:
        if plan.resume:
            held.enter_context(plan.files.held())
            left = what_is_left(plan.files, plan.agent)
            _refuse_other_groups(plan, left.rows)
        else:
            left = Left(plan.inputs())
            plan.files.prepare()
        on_start(left)
        report = Report(left.episodes, failed=left.failed, rows=[*left.done])
        async with plan.model, plan.world(forking=plan.group is not None) as world:
            if not plan.resume:
                plan.files.begin(left.rows)
                held.enter_context(plan.files.held())
            await _collect(plan, world, left.rows, report, on_episode)
        report.metrics = write_metrics(plan, report.rows)
    return report


def _refuse_other_groups(plan: Run, rows: list[Row]) -> None:
    """Refuse to go on with episodes that start from one state as if each had its own, or the reverse."""
    if plan.keeps_sessions and any((PARENT in row) != (plan.group is not None) for row in rows):
        how = "without" if plan.group is not None else "with"
        raise CannotWrite(f"{plan.files.inputs} is of a run {how} --group; go on with it {how} --group")


async def _collect(plan: Run, world: World, rows: list[Row], report: Report, on_episode: Callable[[Row], None]) -> None:
    """Run the episodes of these rows, and write each as it ends."""
    with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

        async def collect(job: tuple[Row, Start]) -> None:
            row, start = job
            ended = await _episode_or_failure(plan, start, row)
            if ended.waits_in is not None:
                report.waiting.append(ended.waits_in)
            elif ended.measured is None:
                failures.write(ended.line)
                report.failed += 1
                report.first_error = report.first_error or ended.row["error"]
            else:
                rollouts.write(ended.line)
                report.rows.append(ended.measured)
            if ended.seat is not None:  # only now: should this process end before, the episode can go on
                await let_go(ended.seat)
            on_episode(ended.row)

        await share_out(_starts(plan, world, rows), min(plan.concurrency, len(rows)), collect)


def _starts(plan: Run, world: World, rows: list[Row]) -> Iterator[tuple[Row, Start]]:
    """The rows, each with what gives its episode a seat; a group is seeded when its turn comes."""
    if plan.group is None:
        yield from ((row, partial(_seat, plan, world, row)) for row in rows)
        return
    for _, group in groupby(rows, lambda row: row["_ng_task_index"]):
        members = [*group]
        seating = Group(members, partial(_seat, plan, world, _parent_of(members[0])), partial(_found, plan, world))
        yield from ((row, partial(seating.start, row)) for row in members)


def _parent_of(row: Row) -> Row:
    """The row that a group's members are all seeded with."""
    parent = {**given_row(row), "_ng_rollout_index": 0}
    return {**parent, SESSION: row[PARENT]["session"]} if PARENT in row else parent


async def _seat(plan: Run, world: World, row: Row) -> Seat:
    """The seat of an episode: the one that it had, if it was begun before."""
    return await _found(plan, world, row) or await world.seed(row, seed=_seed_of(plan, row), began=EPOCH)


async def _found(plan: Run, world: World, row: Row) -> Seat | None:
    if not plan.resume or SESSION not in row:
        return None
    return await world.find(row, seed=_seed_of(plan, row), began=EPOCH)


def _seed_of(plan: Run, row: Row) -> int:
    """A seed of its own for each episode."""
    return plan.seed_of(row["_ng_task_index"], row["_ng_rollout_index"])


class _Ended(NamedTuple):
    """How an episode ended, or that it waits."""

    row: Row
    line: bytes = b""
    measured: Row | None = None
    """None when it broke down."""
    waits_in: str | None = None
    """The session, when it waits for input."""
    seat: Seat | None = None
    """What can be let go, as the episode is over."""


async def _episode_or_failure(plan: Run, start: Start, row: Row) -> _Ended:
    """One episode; if it breaks down, the row is for the failures file."""
    seat: Seat | None = None
    try:
        with contained:
            seat = await start()
            return await _episode(plan, seat, row)
    except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
        known = given_row(row) if seat is None else row  # no session was seeded
        failure = {**known, **failure_fields(plan, error), **place_of(seat)}
        if seat is None and isinstance(error, SessionError):  # it was begun, and by another plan it may go on
            failure["_ng_failure_terminal"] = False
        return _Ended(failure, line_of(failure), seat=None if isinstance(error, PASSING) else seat)


async def let_go(seat: Seat) -> None:
    """Close the session of an episode that is over, if it can be: so it keeps nothing that is outside."""
    with suppress(StateroomError):  # else it ends when its time is up
        await seat.close()


async def _episode(plan: Run, seat: Seat, row: Row) -> _Ended:
    seed, tools = _seed_of(plan, row), plan.tools_for(row)
    before = await recall(seat.record)
    trajectory = await act(seat, seat.record, plan.new_agent(row, seed), tools, plan.items_of(row))
    trajectory = trajectory.following(before)
    if trajectory.status == "waiting":
        return _Ended(row, waits_in=seat.id)
    if trajectory.status == "failed":  # before, and its row was not written
        raise ModelFailed(trajectory.reason)
    response = plan.response(trajectory, tools, seed)
    try:
        found = await seat.verify(row, response)
    except JudgeFailed as error:  # it can be judged later, and has to be known whole for that
        failure = {**row, "response": response, **failure_fields(plan, error), **place_of(seat)}
        return _Ended(failure, line_of(failure))
    measured = measured_fields(found, trajectory, row, seat)
    done = {**row, **measured, "response": response}
    return _Ended(done, line_of(done), measured, seat=seat)


def measured_fields(verdict: Row, trajectory: Trajectory, row: Row, seat: Seat) -> Row:
    """What is known of an episode that ended: its verdict, and what the runner saw."""
    usage = {} if trajectory.usage is None else asdict(trajectory.usage)
    return {
        **verdict,
        "tool_calls": sum(item["type"] == "function_call" for item in trajectory.output),
        "truncated": int(trajectory.status == "incomplete"),
        **{name: usage[name] for name in TOKENS if usage},
        "_ng_task_index": row["_ng_task_index"],
        "_ng_rollout_index": row["_ng_rollout_index"],
        **place_of(seat),
    }


def place_of(seat: Seat | None) -> Row:
    """Where to find the episode's session and the one that it branched off, if that is known."""
    found: Row = {}
    if seat is not None and seat.id is not None:
        found[SESSION] = seat.id
    if seat is not None and seat.origin is not None:
        found[PARENT] = seat.origin._asdict()
    return found


def failure_fields(plan: Plan, error: BaseException) -> Row:
    """What is known of an episode that broke down."""
    if not isinstance(error, StateroomError):
        logger.warning("an episode of %s broke down", plan.environment.name, exc_info=error)
    return {
        "_ng_failure_class": _failure_class(error),
        "_ng_failure_terminal": not isinstance(error, PASSING),
        "error": f"{type(error).__name__}: {error}",
    }


def _failure_class(error: BaseException) -> str:
    match error:
        case ModelFailed() | ModelUnavailable() | ContextOverflow():
            return "model"
        case JudgeFailed():
            return "judge"
        case ServerUnavailable():
            return "server"
        case StoreError() | SessionLeased() | Conflict():
            return "store"
    return "environment"


def write_metrics(plan: Plan, rows: list[Row]) -> dict[str, Any]:
    """Aggregate what the verifier and the runner measured, and write it down."""
    found = aggregate(rows)
    plan.files.write_metrics(plan.agent, found)
    return found
