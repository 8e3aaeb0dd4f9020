"""Going on with a run that was interrupted: what its files say is done, and what is left to do."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateroom.errors import CannotWrite, NotFound
from stateroom.rollout.files import RunFiles, write_whole
from stateroom.rollout.measured import Measured
from stateroom.rollout.rows import Key, key_of, lines_of, row_of
from stateroom.rollout.world import Row


@dataclass
class Left:
    """What is left of a run."""

    rows: list[Row]
    """The rows to run."""
    done: list[Row] = field(default_factory=list)
    """What was measured in the episodes that finished before."""
    failed: int = 0
    """How many broke down before, for good."""

    @property
    def over(self) -> int:
        """How many episodes are over."""
        return len(self.done) + self.failed

    @property
    def episodes(self) -> int:
        """How many there are in all."""
        return len(self.rows) + self.over


def what_is_left(files: RunFiles, agent: Any) -> Left:
    """What a run has left to do, by its files; those are made fit to be added to.

    Rows that the end of the process has cut short are dropped, and so are failures that may not happen again: their
    episodes are run once more.
    """
    inputs = _inputs(files, agent)
    measured = Measured(inputs)
    finished: dict[Key, int] = {}
    for number, row in _whole_rows(files.rollouts):  # which may be too many to be in memory at once
        if finished.setdefault(key_of(row), number) == number:
            measured.note(row)
    ended: dict[Key, int] = {}
    for number, row in _whole_rows(files.failures):
        if row.get("_ng_failure_terminal", True) and key_of(row) not in finished:
            ended[key_of(row)] = number
    _keep(files.rollouts, {*finished.values()})
    _keep(files.failures, {*ended.values()})
    over = {*finished, *ended}
    return Left([row for key, row in inputs.items() if key not in over], measured.rows(), len(ended))


def _inputs(files: RunFiles, agent: Any) -> dict[Key, Row]:
    """The episodes of the run, if it is one of this agent's."""
    if not files.inputs.is_file():
        first = f"remove {files.rollouts}, and " if files.rollouts.exists() else ""
        raise NotFound(f"there is no run to go on with: {files.inputs} is missing; {first}run it without --resume")
    rows = [row_of(line, number) for number, line in lines_of(files.inputs)]
    for row in rows:
        if row.get("agent_ref") != agent:
            name = (row.get("agent_ref") or {}).get("name")
            raise CannotWrite(f"{files.inputs} is of a run by {name!r}; go on with the same --model")
    return {key_of(row): row for row in rows}


def _whole_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file, if it is there, and their lines' numbers; the last line may be cut short."""
    if path.exists():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield number, row_of(line, number)


def _keep(path: Path, numbers: Container[int]) -> None:
    """Let a file have only these of its lines, if there is one."""
    if path.exists():
        with path.open("rb") as file:
            write_whole(path, (line for number, line in enumerate(file, 1) if number in numbers))
