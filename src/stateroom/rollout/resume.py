"""Resuming a run that was interrupted: what its files say is done, and what is left to do."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stateroom.errors import CannotWrite, NotFound
from stateroom.jsonl import read_lines, repair, replace_lines
from stateroom.rollout.description import RunDescription
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import Measurements
from stateroom.rollout.rows import Key, Row, inputs_of, key_of, parse_row


@dataclass
class Left:
    """What a run has left to do."""

    rows: list[Row]
    """The rows to run."""
    done: list[Row] = field(default_factory=list)
    """The measurements of episodes that have finished."""
    failed: int = 0
    """Episodes that failed for good."""

    @property
    def over(self) -> int:
        """Episodes that are over."""
        return len(self.done) + self.failed

    @property
    def episodes(self) -> int:
        """All episodes of the run."""
        return len(self.rows) + self.over


def what_is_left(files: RunFiles, model: str) -> Left:
    """What a run has left to do, by its files, which are repaired for it.

    Rows that were cut short are removed, and so are transient failures: their episodes run again.
    """
    inputs = _inputs(files, model)
    measurements = Measurements(inputs)
    finished: dict[Key, int] = {}
    for number, row in _rows(files.rollouts):  # one by one: all of them may not fit into memory
        if finished.setdefault(key_of(row), number) == number:
            measurements.add(row)
    ended: dict[Key, int] = {}
    for number, row in _rows(files.failures):
        if row.get("_ng_failure_terminal", True) and key_of(row) not in finished:
            ended[key_of(row)] = number
    _keep(files.rollouts, {*finished.values()})
    _keep(files.failures, {*ended.values()})
    over = {*finished, *ended}
    return Left([row for key, row in inputs.items() if key not in over], measurements.rows(), len(ended))


def _inputs(files: RunFiles, model: str) -> dict[Key, Row]:
    """The episodes of the run; `CannotWrite` if another model ran them."""
    if not files.inputs.is_file():
        told = f"{files.rollouts} cannot be resumed: {files.inputs} is missing"
        raise NotFound(f"{told}; give another --output, or start over with --force")
    described = RunDescription.read(files)
    if described is not None and described.model != model:
        raise CannotWrite(f"{files.rollouts} is of a run by {described.model!r}; resume it with the same --model")
    return inputs_of(files.inputs)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file, if there is one, with the numbers of their lines."""
    if path.exists():
        repair(path)
        yield from ((number, parse_row(line, number)) for number, line in read_lines(path))


def _keep(path: Path, numbers: Container[int]) -> None:
    """Remove all other lines from a file, if there is one."""
    if path.exists():
        with path.open("rb") as file:
            replace_lines(path, (line for number, line in enumerate(file, 1) if number in numbers))
