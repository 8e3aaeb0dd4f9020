"""Resuming a run that was interrupted: what its files say is done, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stateroom.errors import NotFound
from stateroom.jsonl import repair, replace_lines
from stateroom.rollout.files import RunFiles
from stateroom.rollout.index import INPUTS, RunIndex
from stateroom.rollout.rows import Row

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


def what_is_left(files: RunFiles) -> ResumePlan:
    """What a run has left to do, by its files, which are repaired for it.

    Rows that were cut short are removed, and so are transient failures: their episodes run again.
    """
    if not files.inputs.is_file():
        missing = f"{files.rollouts} cannot be resumed: {files.inputs} is missing"
        raise NotFound(f"{missing}; give another --output, or start over with --force")
    for path in (files.rollouts, files.failures):
        if path.exists():
            repair(path)
    index = RunIndex.of(files)
    index.ensure_whole("inputs", "rollouts", "failures")
    rows = index.rows(UNFINISHED, order="task, rollout")
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
