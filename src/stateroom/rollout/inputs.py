"""`InputRows`: the rows of a run before they had a verdict, read from its inputs file as they are asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from weakref import finalize

from stateroom.errors import NotFound
from stateroom.jsonl import BOM, numbered_lines, open_regular, read_lines
from stateroom.rollout.rows import Key, Row, key_of, parse_row


def inputs_of(path: Path) -> Mapping[Key, Row]:
    """The rows before they had a verdict, from the inputs file of a run; none if there is no such file."""
    return InputRows(path) if path.exists() else {}


@dataclass(frozen=True)
class RowsOf:
    """The rows of a file, which is read each time that they are."""

    path: Path

    def __iter__(self) -> Iterator[Row]:
        return (parse_row(line, number) for number, line in read_lines(self.path))


class InputRows(Mapping[Key, Row]):
    """The rows of an inputs file, sorted by their keys. Of each, 24 bytes are in memory: a row is read when asked for.

    If several have the same key, the last one counts. A file that is replaced meanwhile still has its old rows here.
    `NotFound` if it cannot be read, and `BadTask` if a line is no row.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise NotFound(f"cannot read {path}: {error.strerror}") from error
        finalize(self, self._file.close)
        self._tasks, self._rollouts, self._starts = array("q"), array("q"), array("q")
        start = 0
        for number, line, size in numbered_lines(self._file):
            if line:
                self._add(key_of(parse_row(line, number)), start)
            start += size
        if any(key >= following for key, following in pairwise(self)):
            self._sort()

    def _add(self, key: Key, start: int) -> None:
        for places, value in zip((self._tasks, self._rollouts, self._starts), (*key, start), strict=True):
            places.append(value)

    def _sort(self) -> None:
        found = dict(zip(self, self._starts, strict=True))
        self._tasks, self._rollouts, self._starts = array("q"), array("q"), array("q")
        for key in sorted(found):
            self._add(key, found[key])

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Key]:
        return zip(self._tasks, self._rollouts, strict=True)

    def __getitem__(self, key: Key) -> Row:
        if (place := self.place_of(key)) is None:
            raise KeyError(key)
        return self.at(place)

    def at(self, place: int) -> Row:
        """The row at a place, from 0."""
        self._file.seek(self._starts[place])
        line = self._file.readline().removeprefix(BOM).strip()
        return parse_row(line, self._tasks[place] + 1)  # the number of a line of a row without indices

    def place_of(self, key: Key) -> int | None:
        """The place of a key among all keys; None if it is not among them."""
        task, rollout = key
        end = bisect_right(self._tasks, task)
        place = bisect_left(self._rollouts, rollout, bisect_left(self._tasks, task), end)
        return place if place < end and self._rollouts[place] == rollout else None

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return sum(1 for _ in groupby(self._tasks))
