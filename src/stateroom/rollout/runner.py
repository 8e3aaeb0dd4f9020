"""The runner: collects episodes, and loses none that finished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from stateroom.agent import Trajectory, act
from stateroom.errors import PolicyFailed, ServerUnavailable, StateroomError, StoreError
from stateroom.model import input_items
from stateroom.rollout.files import Appender, line_of
from stateroom.rollout.group import Group, Start
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.plan import EPOCH, Plan
from stateroom.rollout.workers import share_out
from stateroom.rollout.world import Row, Seat, World
from stateroom.session.execution import was_cancelled

logger = logging.getLogger(__name__)

ONLY_TURN = "0"
"""An episode is one turn: its calls have the same ids in every run."""


@dataclass(frozen=True)
class Run(Plan):
    """What is to be run."""

    repeats: int = 1
    """Episodes of each task, each with a luck of its own."""
    group: int | None = None
    """Episodes of each task that start from one state, luck and all, instead."""

    def inputs(self) -> list[Row]:
        """The rows to run: the first `limit` tasks, each as often as it is to be run, in a row."""
        return self.inputs_for(self.repeats if self.group is None else self.group)


@dataclass
class Report:
    """What a run came to."""

    episodes: int
    failed: int = 0
    rows: list[Row] = field(default_factory=list)
    """The finished episodes: what was measured in each, and its indices and session."""
    first_error: str | None = None
    """What the first episode that broke down died of."""
    metrics: dict[str, Any] = field(default_factory=dict)


async def run(plan: Run, on_episode: Callable[[Row], None] = lambda row: None) -> Report:
    """Run all episodes, so many at a time, writing each as it ends; `on_episode` is told of each."""
    inputs = plan.inputs()
    plan.files.prepare()
    report = Report(len(inputs))
    async with plan.world(forking=plan.group is not None) as world:
        plan.files.begin(inputs)
        with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

            async def collect(job: tuple[Row, Start]) -> None:
                row, start = job
                ended = await _episode_or_failure(plan, start, row)
                if ended.measured is None:
                    failures.write(ended.line)
                    report.failed += 1
                    report.first_error = report.first_error or ended.row["error"]
                else:
                    rollouts.write(ended.line)
                    report.rows.append(ended.measured)
                on_episode(ended.row)

            await share_out(_starts(plan, world, inputs), min(plan.concurrency, len(inputs)), collect)
    report.metrics = write_metrics(plan, report.rows)
    return report


def _starts(plan: Run, world: World, inputs: list[Row]) -> Iterator[tuple[Row, Start]]:
    """The rows, each with what gives its episode a seat; a group is seeded when its turn comes."""
    start: Start
    for row in inputs:
        if plan.group is None:
            start = partial(_seed, plan, world, row)
        elif row["_ng_rollout_index"] == 0:
            start = Group(partial(_seed, plan, world, row), plan.group).start
        yield row, start


async def _seed(plan: Run, world: World, row: Row) -> Seat:
    return await world.seed(row, seed=_seed_of(plan, row), began=EPOCH)


def _seed_of(plan: Run, row: Row) -> int:
    """A seed of its own for each episode."""
    return plan.seed_of(row["_ng_task_index"], row["_ng_rollout_index"])


class _Ended(NamedTuple):
    """How an episode ended."""

    row: Row
    line: bytes
    measured: Row | None
    """None when it broke down."""


async def _episode_or_failure(plan: Run, start: Start, row: Row) -> _Ended:
    """One episode; if it breaks down, the row is for the failures file."""
    seat: Seat | None = None
    try:
        seat = await start()
        return await _episode(plan, seat, row)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if was_cancelled(error):
            raise  # the run was; else it is something of the environment's own
        if seat is not None:
            await close_failed(seat)
        failure = {**row, **failure_fields(plan, error), **place_of(seat)}
        return _Ended(failure, line_of(failure), None)


async def close_failed(seat: Seat) -> None:
    """Close the session of an episode that broke down, if it can be: so it keeps nothing that is outside."""
    with suppress(StateroomError):  # what it broke down of is what counts
        await seat.close()


async def _episode(plan: Run, seat: Seat, row: Row) -> _Ended:
    seed, tools = _seed_of(plan, row), plan.tools_for(row)
    trajectory = await act(
        seat,
        plan.new_policy(seed),
        input_items(row.get("responses_create_params", {}).get("input")),
        tools,
        max_steps=plan.max_steps,
        deadline=plan.deadline,
        turn=ONLY_TURN,
    )
    response = plan.response(trajectory, tools, seed)
    found = await seat.verify(row, response)
    await seat.close()
    measured = measured_fields(found, trajectory, row, seat)
    done = {**row, **measured, "response": response}
    return _Ended(done, line_of(done), measured)


def measured_fields(verdict: Row, trajectory: Trajectory, row: Row, seat: Seat) -> Row:
    """What is known of an episode that ended: its verdict, and what the runner saw."""
    return {
        **verdict,
        "tool_calls": sum(item["type"] == "function_call" for item in trajectory.output),
        "truncated": int(trajectory.status == "incomplete"),
        "_ng_task_index": row["_ng_task_index"],
        "_ng_rollout_index": row["_ng_rollout_index"],
        **place_of(seat),
    }


def place_of(seat: Seat | None) -> Row:
    """Where to find the episode's session and the one that it branched off, if that is known."""
    found: Row = {}
    if seat is not None and seat.id is not None:
        found["_stateroom_session"] = seat.id
    if seat is not None and seat.origin is not None:
        found["_stateroom_parent"] = seat.origin._asdict()
    return found


def failure_fields(plan: Plan, error: BaseException) -> Row:
    """What is known of an episode that broke down."""
    if not isinstance(error, StateroomError):
        logger.warning("an episode of %s broke down", plan.environment.name, exc_info=error)
    return {
        "_ng_failure_class": _failure_class(error),
        "_ng_failure_terminal": not isinstance(error, StoreError | ServerUnavailable),
        "error": f"{type(error).__name__}: {error}",
    }


def _failure_class(error: BaseException) -> str:
    if isinstance(error, PolicyFailed):
        return "policy"
    if isinstance(error, ServerUnavailable):
        return "server"
    return "store" if isinstance(error, StoreError) else "environment"


def write_metrics(plan: Plan, rows: list[Row]) -> dict[str, Any]:
    """Aggregate what the verifier and the runner measured, and write it down."""
    found = aggregate(rows)
    plan.files.write_metrics(plan.agent, found)
    return found
