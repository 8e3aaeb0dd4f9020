"""Resuming a run that was interrupted: what its files say is done, and what is left to do."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateroom.errors import NotFound
from stateroom.jsonl import read_lines, repair, replace_lines
from stateroom.rollout.files import RunFiles
from stateroom.rollout.inputs import InputRows
from stateroom.rollout.lazy import LazyMap
from stateroom.rollout.metrics import Measurements
from stateroom.rollout.rows import Key, Row, key_of, parse_row
from stateroom.rollout.spool import SpooledRows


@dataclass
class ResumePlan:
    """What a run has left to do."""

    rows: Iterable[Row]
    """The rows to run, read from the inputs file one by one: they are there when the run has begun."""
    unfinished: int
    """How many these are."""
    tasks: int
    """All tasks of the run."""
    done: Sequence[Row] = ()
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
        return self.unfinished + self.over


def what_is_left(files: RunFiles) -> ResumePlan:
    """What a run has left to do, by its files, which are repaired for it.

    Rows that were cut short are removed, and so are transient failures: their episodes run again.
    """
    if not files.inputs.is_file():
        told = f"{files.rollouts} cannot be resumed: {files.inputs} is missing"
        raise NotFound(f"{told}; give another --output, or start over with --force")
    inputs = InputRows(files.inputs)
    measurements = Measurements(inputs, SpooledRows(folder=files.rollouts.parent))
    over = _Keys(inputs)
    repeated: set[int] = set()
    for number, row in _rows(files.rollouts):  # one by one: all of them may not fit into memory
        if over.add(key_of(row)):
            measurements.add(row)
        else:
            repeated.add(number)
    ended, others = _failures(files.failures, over)
    _remove(files.rollouts, repeated)
    _remove(files.failures, others)
    for key in ended:
        over.add(key)
    unfinished = array("I", (place for place, key in enumerate(inputs) if key not in over))
    return ResumePlan(LazyMap(inputs.at, unfinished), len(unfinished), inputs.tasks, measurements.rows(), len(ended))


def _failures(path: Path, finished: _Keys) -> tuple[set[Key], set[int]]:
    """The episodes that failed for good, and the numbers of all lines of the failures but the last one of each."""
    ended: dict[Key, int] = {}
    others: set[int] = set()
    for number, row in _rows(path):
        key = key_of(row)
        if not row.get("_ng_failure_terminal", True) or key in finished:
            others.add(number)
            continue
        if key in ended:
            others.add(ended[key])
        ended[key] = number
    return {*ended}, others


class _Keys:
    """A set of keys: of each that is among the inputs, a byte is in memory."""

    def __init__(self, inputs: InputRows) -> None:
        self._inputs = inputs
        self._flags = bytearray(len(inputs))
        self._others: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        place = self._inputs.place_of(key)
        return key in self._others if place is None else bool(self._flags[place])

    def add(self, key: Key) -> bool:
        """Add a key; gives whether it is new."""
        if key in self:
            return False
        place = self._inputs.place_of(key)
        if place is None:
            self._others.add(key)
        else:
            self._flags[place] = True
        return True


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file, if there is one, with the numbers of their lines."""
    if path.exists():
        repair(path)
        yield from ((number, parse_row(line, number)) for number, line in read_lines(path))


def _remove(path: Path, numbers: set[int]) -> None:
    """Remove lines from a file."""
    if numbers:
        with path.open("rb") as file:
            replace_lines(path, (line for number, line in enumerate(file, 1) if number not in numbers))
