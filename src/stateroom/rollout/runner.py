"""The runner: collects episodes, and keeps finished ones and the progress of unfinished ones across crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from stateroom.errors import InvalidOption, NotFound
from stateroom.jsonl import Appender, repair, replace_lines
from stateroom.rollout.description import described, ensure_same_run
from stateroom.rollout.engines import Finished, ToolFailed, WorkerPool
from stateroom.rollout.failures import ToolFailures
from stateroom.rollout.index import INPUTS, RunIndex
from stateroom.rollout.metrics import aggregate_lazily
from stateroom.rollout.plan import RunPlan
from stateroom.rollout.rows import PARENT, Row, RowsOf
from stateroom.rollout.search import Search

FINISHED = "SELECT 1 FROM rows WHERE file = 'rollouts' AND task = e.task AND rollout = e.rollout"
"""Selects whether the episode of a row `e` has finished."""

ENDED = f"""SELECT max(id) FROM rows AS e
    WHERE file = 'failures' AND terminal AND NOT EXISTS ({FINISHED}) GROUP BY task, rollout"""
"""The last rows of permanently failed episodes."""

UNFINISHED = f"""id IN (
    SELECT id FROM (SELECT * FROM {INPUTS}) AS e WHERE NOT EXISTS ({FINISHED})
    EXCEPT SELECT i.id FROM rows AS i JOIN rows AS f USING (task, rollout) WHERE i.file = 'inputs' AND f.id IN ({ENDED})
)"""
"""The inputs of the remaining episodes."""


@dataclass
class ResumePlan:
    """The remaining work of a run."""

    rows: Iterable[Row]
    """The rows to run, read one by one from the inputs file once the run has begun."""
    unfinished: int
    """The number of these rows."""
    tasks: int
    """The number of tasks in the run."""
    done: int = 0
    """Episodes that have finished."""
    failed: int = 0
    """Permanently failed episodes."""
    cost: float = 0.0
    """The cost of the finished episodes."""

    @property
    def over(self) -> int:
        """Episodes that have finished or failed permanently."""
        return self.done + self.failed

    @property
    def episodes(self) -> int:
        """All episodes of the run."""
        return self.unfinished + self.over


def prepare_resume(plan: RunPlan) -> ResumePlan:
    """Repair the files of a resumed run; returns the remaining work.

    Incomplete rows are removed, as are transient failures, whose episodes run again.
    """
    files = plan.files
    if not files.inputs.is_file():
        missing = f"{files.rollouts} cannot be resumed: {files.inputs} is missing"
        raise NotFound(f"{missing}; give another `output`, or start over with `force`")
    for path in (files.rollouts, files.failures):
        if path.exists():
            repair(path)
    index = RunIndex.of(files)
    index.ensure_whole("inputs", "rollouts", "failures")
    rows = index.rows(UNFINISHED, order="task, rollout")
    _ensure_same_groups(plan, rows)
    [(tasks,)] = index.select(f"SELECT count(DISTINCT task) FROM {INPUTS}")
    [(done, cost)] = index.select("SELECT count(*), total(cost) FROM rows WHERE file = 'rollouts' AND NOT again")
    [(failed,)] = index.select(f"SELECT count(*) FROM ({ENDED})")
    repeated, replaced = index.lines("rollouts", "again"), index.lines("failures", f"id NOT IN ({ENDED})")
    _remove(files.rollouts, repeated)
    _remove(files.failures, replaced)
    return ResumePlan(rows, len(rows), tasks, done, failed, cost)


def _remove(path: Path, numbers: set[int]) -> None:
    """Remove lines from a file."""
    if numbers:
        with path.open("rb") as file:
            replace_lines(path, (line for number, line in enumerate(file, 1) if number not in numbers))


T = TypeVar("T")


@dataclass
class Report:
    """The results of a run."""

    episodes: int
    tool_failures: ToolFailures
    """Tool calls that failed because of errors in the environment."""
    failed: int = 0
    transient: int = 0
    """Failed episodes that a resumed run retries."""
    waiting: list[str] = field(default_factory=list)
    """The sessions of agents that wait for input."""
    done: int = 0
    """Episodes that have finished."""
    rows: Sequence[Row] = ()
    """The measurements, indices and sessions of the finished episodes, computed on access; set at the end."""
    first_error: str | None = None
    """The error of the first failed episode, with its place in user code if known."""
    metrics: dict[str, Any] = field(default_factory=dict)
    earlier: int = 0
    """The number of finished episodes from earlier processes."""
    cost: float = 0.0
    """The total cost of the model's tokens, if there is a price and rows report tokens."""
    not_started: int = 0
    """Episodes that were not started because the plan's `max_cost` was reached."""
    elapsed: float = 0.0
    """The time of this process, in seconds."""


async def run(
    plan: RunPlan,
    on_episode: Callable[[Finished], None] = lambda finished: None,
    on_start: Callable[[ResumePlan], None] = lambda left: None,
) -> Report:
    """Run all episodes, `concurrency` at a time, and write each one when it ends.

    `on_start` is called with the work to do, and `on_episode` with each finished episode.
    """
    async with AsyncExitStack() as stack:
        resumes = plan.options.resume and plan.files.begun  # otherwise it never began, and starts now
        if resumes:
            stack.enter_context(plan.files.lock())
            ensure_same_run(plan)
            left = prepare_resume(plan)
        else:
            plan.check_model()
            left = ResumePlan(RowsOf(plan.files.inputs), plan.task_count * plan.rollouts, plan.task_count)
            plan.files.prepare(force=plan.options.force, resume=plan.options.resume)
        on_start(left)
        started = perf_counter()
        tool_failures = stack.enter_context(ToolFailures(plan.files.tool_failures))
        report = Report(left.episodes, tool_failures, left.failed, done=left.done, earlier=left.done, cost=left.cost)
        workers = await stack.enter_async_context(WorkerPool(plan))
        if not resumes:
            plan.files.begin(plan.inputs())
            stack.enter_context(plan.files.lock())
        stack.enter_context(described(plan, left.tasks, left.episodes))
        rollouts = stack.enter_context(Appender(plan.files.rollouts))
        failures = stack.enter_context(Appender(plan.files.failures))
        collect = partial(_collect, report=report, rollouts=rollouts, failures=failures, on_episode=on_episode)
        most = plan.options.max_cost
        may_start = None if most is None else lambda: report.cost < most
        await workers.run(left.rows, collect, resumes=plan.options.resume, may_start=may_start)
        report.not_started = report.episodes - report.done - report.failed - len(report.waiting)
        report.rows = Search(RunIndex.of(plan.files, "inputs", "rollouts")).measured()
        report.metrics = aggregate_lazily(report.rows, plan.options.solved_threshold) | tool_failures.metrics()
        plan.files.write_metrics(plan.agent_ref, report.metrics)
        report.elapsed = perf_counter() - started
    return report


def _ensure_same_groups(plan: RunPlan, rows: Iterable[Row]) -> None:
    """Refuse to resume a run with groups without them, or the reverse; all rows of a run are alike."""
    if plan.keeps_sessions and any((PARENT in row) != (plan.options.group is not None) for row in islice(rows, 1)):
        how = "without" if plan.options.group is not None else "with"
        raise InvalidOption("group", f"{plan.files.inputs} is from a run {how} a group; resume it {how} a group")


async def run_all(jobs: Iterable[T], workers: int, do: Callable[[T], Awaitable[None]]) -> None:
    """Do all jobs, `workers` at a time. Free workers take the next job; the first error stops all."""
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


def _collect(
    message: Finished | ToolFailed,
    report: Report,
    rollouts: Appender,
    failures: Appender,
    on_episode: Callable[[Finished], None],
) -> None:
    """Write the messages of workers to the files of a run, and count them in its report."""
    if not isinstance(message, Finished):
        report.tool_failures.add(message.failure)
        return
    report.cost += message.cost
    if message.waits_in is not None:
        report.waiting.append(message.waits_in)
    elif message.error is not None:
        failures.write(message.line)
        report.failed += 1
        report.transient += message.transient
        report.first_error = report.first_error or message.error
    else:
        rollouts.write(message.line)
        report.done += 1
    on_episode(message)
