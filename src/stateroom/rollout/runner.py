"""The runner: collects episodes, and loses none that finished, nor what was done in those that did not."""

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
"""Finds out whether a row `e` is of an episode that has finished."""

ENDED = f"""SELECT max(id) FROM rows AS e
    WHERE file = 'failures' AND terminal AND NOT EXISTS ({FINISHED}) GROUP BY task, rollout"""
"""The last rows of the episodes that failed for good."""

UNFINISHED = f"""id IN (
    SELECT id FROM (SELECT * FROM {INPUTS}) AS e WHERE NOT EXISTS ({FINISHED})
    EXCEPT SELECT i.id FROM rows AS i JOIN rows AS f USING (task, rollout) WHERE i.file = 'inputs' AND f.id IN ({ENDED})
)"""
"""The inputs of the episodes that are left to run."""


@dataclass
class ResumePlan:
    """What a run has left to do."""

    rows: Iterable[Row]
    """The rows to run, read from the inputs file one by one: they are there when the run has begun."""
    unfinished: int
    """How many these are."""
    tasks: int
    """All tasks of the run."""
    done: int = 0
    """Episodes that have finished."""
    failed: int = 0
    """Episodes that failed for good."""
    cost: float = 0.0
    """What the finished ones have cost."""

    @property
    def over(self) -> int:
        """Episodes that are over."""
        return self.done + self.failed

    @property
    def episodes(self) -> int:
        """All episodes of the run."""
        return self.unfinished + self.over


def prepare_resume(plan: RunPlan) -> ResumePlan:
    """Repair the files of a run that is resumed; gives what it has left to do.

    Rows that were cut short are removed, and so are transient failures: their episodes run again.
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
    """Tool calls that failed because of the author's code."""
    failed: int = 0
    transient: int = 0
    """Episodes among the failed ones that may not fail again: a resumed run tries them again."""
    waiting: list[str] = field(default_factory=list)
    """The sessions whose agents wait for input."""
    done: int = 0
    """Episodes that have finished."""
    rows: Sequence[Row] = ()
    """The finished episodes, when all are: the measurements of each, its indices and its session, as they are read."""
    first_error: str | None = None
    """The error of the first episode that failed, with its place in the author's code, if that is known."""
    metrics: dict[str, Any] = field(default_factory=dict)
    earlier: int = 0
    """How many of the finished episodes an earlier process has run."""
    cost: float = 0.0
    """What the model's tokens have cost in all, with a price and as far as the rows tell."""
    not_started: int = 0
    """Episodes that were not started, since the others have cost the plan's `max_cost`."""
    elapsed: float = 0.0
    """Seconds that this process took."""


async def run(
    plan: RunPlan,
    on_episode: Callable[[Finished], None] = lambda finished: None,
    on_start: Callable[[ResumePlan], None] = lambda left: None,
) -> Report:
    """Run all episodes, `concurrency` at a time, and write each as it ends.

    `on_start` is called with what there is to do, and `on_episode` with each episode that has ended.
    """
    async with AsyncExitStack() as stack:
        resumes = plan.options.resume and plan.files.begun  # else it never began, and starts
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
    """Refuse to resume a run of groups without them, or the reverse; its rows are all alike."""
    if plan.keeps_sessions and any((PARENT in row) != (plan.options.group is not None) for row in islice(rows, 1)):
        how = "without" if plan.options.group is not None else "with"
        raise InvalidOption("group", f"{plan.files.inputs} is of a run {how} one; resume it {how} one")


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


def _collect(
    message: Finished | ToolFailed,
    report: Report,
    rollouts: Appender,
    failures: Appender,
    on_episode: Callable[[Finished], None],
) -> None:
    """Write what a worker tells to the files of a run, and count it in its report."""
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
