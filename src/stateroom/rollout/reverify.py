"""Re-verification: new rewards for rollouts, from what is stored of their episodes. No tool is run again."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from stateroom.environment import Environment
from stateroom.errors import (
    BadTask,
    BadVerdict,
    CannotWrite,
    EnvironmentFailed,
    JudgeFailed,
    NotFound,
    StateroomError,
    StoreUnavailable,
    TimedOut,
)
from stateroom.rollout.files import Appender, RunFiles, quick_line_of
from stateroom.rollout.judges import Rejudge, StoredJudge, judging, measured, renewed
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.rows import REVERIFIED, Key, inputs_of, key_of, lines_of, row_of
from stateroom.rollout.workers import share_out
from stateroom.rollout.world import Row
from stateroom.session.containment import contained
from stateroom.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reverification:
    """What is to be judged again."""

    environment: Environment[Any, Any]
    rollouts: Path
    files: RunFiles
    """Where the rows with new rewards go. What is there from the same rollouts is not done again."""
    store: Store | None = None
    """Where the sessions are; an environment without a state has none."""
    at: int | None = None
    """The revision to judge in each session or, if negative, how many before the one that was judged."""
    concurrency: int = 32


class TaskChange(NamedTuple):
    """The mean rewards of a task's episodes."""

    task: int
    episodes: int
    before: float
    after: float


@dataclass
class Reverified:
    """What came of it."""

    rows: list[Row] = field(default_factory=list)
    """The rows that were judged: what was measured in each, its indices, and the reward `_before`."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why rows were refused, and how many for each reason."""
    resumed: int = 0
    """How many of them had been judged before this was interrupted."""
    agent: Any = None
    """Who acted in the episodes."""
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many rows could not be judged."""
        return self.reasons.total()

    def refuse(self, row: Row, error: BaseException) -> str:
        """Count a row that could not be judged; gives the reason in words."""
        if not isinstance(error, StateroomError):
            logger.warning("a verifier raised", exc_info=error)
        told = f"{type(error).__name__}: {error}"
        self.reasons[told.replace(repr(row.get("_stateroom_session")), "…")] += 1
        return told

    def changes(self) -> list[tuple[float, float]]:
        """The rewards before and after, of the rows that had one before."""
        return [(row["_before"], row["reward"]) for row in self.rows if row["_before"] is not None]

    def tasks(self) -> list[TaskChange]:
        """The tasks whose mean reward has changed, those that have changed most first."""
        found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row in self.rows:
            if row["_before"] is not None:
                found[row["_ng_task_index"]].append((row["_before"], row["reward"]))
        tasks = [TaskChange(task, len(pairs), *map(fmean, zip(*pairs, strict=True))) for task, pairs in found.items()]
        changed = [task for task in tasks if task.before != task.after]
        return sorted(changed, key=lambda task: (-abs(task.after - task.before), task.task))


async def reverify(plan: Reverification, on_row: Callable[[], None] = lambda: None) -> Reverified:
    """Judge all rows again, writing each as it is judged; `on_row` is told of each.

    Rows that cannot honestly be judged go to the failures file, with the reason. If this was interrupted, doing it
    again goes on where it ended; `CannotWrite` if what is there was made from other rollouts, or in another way.
    """
    if not plan.rollouts.is_file():
        raise NotFound(f"there is no rollouts file {plan.rollouts}")
    report = Reverified()
    seen: set[Key] = set()
    async with _judging(plan) as judge:
        done = _resume(plan, report)
        with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

            async def do(job: tuple[int, bytes]) -> None:
                number, line = job
                digest = _digest(plan, line)
                row: Row = {}
                try:
                    with contained:
                        row = row_of(line, number)
                        _refuse_twin(row, seen)
                        if digest not in done:
                            new = renewed(row, await judge.judge(row), digest)
                            rollouts.write(quick_line_of(new))
                            _note(report, new)
                except (StoreUnavailable, CannotWrite):
                    raise  # it is not the row's fault
                except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
                    failures.append(_failure(report, row, error))
                on_row()

            await share_out(lines_of(plan.rollouts), plan.concurrency, do)
    if not (report.rows or report.refused):
        raise BadTask(f"{plan.rollouts} has no rows")
    report.metrics = aggregate(report.rows)
    plan.files.write_metrics(report.agent, report.metrics)
    return report


def _judging(plan: Reverification) -> AbstractAsyncContextManager[Rejudge]:
    environment = plan.environment
    if environment.state_type is None and plan.at is not None:
        raise NotFound(f"{environment.name} is stateless: it has no state at a revision")
    stored = partial(StoredJudge, environment, at=plan.at)
    return judging(environment, partial(inputs_of, plan.rollouts), plan.store, stored)


def _refuse_twin(row: Row, seen: set[Key]) -> None:
    key = key_of(row)
    if key in seen:
        raise BadTask("an episode of the same task and rollout index was there before")
    seen.add(key)


def _note(report: Reverified, row: Row) -> None:
    report.rows.append(measured(row))
    report.agent = report.agent or row.get("agent_ref")


def _failure(report: Reverified, row: Row, error: BaseException) -> Row:
    """The row for the failures file; the report counts it."""
    return {
        **row,
        "_ng_failure_class": _failure_class(error),
        "_ng_failure_terminal": not isinstance(error, JudgeFailed),
        "error": report.refuse(row, error),
    }


def _failure_class(error: BaseException) -> str:
    if isinstance(error, JudgeFailed):
        return "judge"
    authors = isinstance(error, BadVerdict | TimedOut | EnvironmentFailed) or not isinstance(error, StateroomError)
    return "environment" if authors else "refused"


# Going on where it ended.


def _digest(plan: Reverification, line: bytes) -> str:
    """By what it is known which row, and what was asked of it, a new row is made from."""
    judge = type(plan.environment)
    asked = f"{judge.__module__}\n{judge.__qualname__}\n{plan.at}\n".encode()
    return blake2b(asked + line, digest_size=16).hexdigest()


def _resume(plan: Reverification, report: Reverified) -> set[str]:
    """See that there is a file to write to; the digests of the rows that are there already, which the report counts."""
    path = plan.files.rollouts
    if not path.exists():
        plan.files.prepare()
        with Appender(path) as rollouts:
            rollouts.write(b"")  # so that it is there, whatever comes
        return set()
    done: set[str] = set()
    for row in _rows_there(path):
        done.add(row[REVERIFIED]["of"])
        _note(report, row)
    if not done <= {_digest(plan, line) for _, line in lines_of(plan.rollouts)}:
        raise CannotWrite(
            f"{path} was made from other rollouts, or with another environment or revision; give another --output"
        )
    report.resumed = len(done)
    _cut_off_half_a_line(path)
    plan.files.failures.unlink(missing_ok=True)  # what was refused is tried again
    return done


def _rows_there(path: Path) -> Iterator[Row]:
    """The rows of a re-verification; the last line may be cut short."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            row = row_of(line, number)
            if REVERIFIED not in row:
                raise CannotWrite(f"{path} is there already; give another --output, or remove it")
            yield row


def _cut_off_half_a_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end and (file.seek(end - 1), file.read(1))[1] != b"\n":
            end -= 1
        file.truncate(end)
