"""`SpooledRows`: a list of rows that is in a file instead of in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from weakref import finalize

from stateroom.errors import CannotWrite
from stateroom.jsonl import parse_object, quick_line_of
from stateroom.rollout.lazy import LazySequence
from stateroom.rollout.rows import Row


class SpooledRows(LazySequence[Row]):
    """A list of rows in a file without a name, which is gone with this object. Of each row, 8 bytes are in memory.

    A row is JSON data, and each time that it is read another copy. `CannotWrite` if there is no space in `folder`.
    """

    def __init__(self, rows: Iterable[Row] = (), folder: Path | None = None) -> None:
        self._file = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - it is closed with this object
        finalize(self, self._file.close)
        self._ends = array("Q", [0])
        """Where the rows end, after the start of the first."""
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _item(self, index: int) -> Row:
        start, end = self._ends[index : index + 2]
        return parse_object(os.pread(self._file.fileno(), end - start, start))

    def append(self, row: Row) -> None:
        line = quick_line_of(row)
        self._ends.append(self._ends[-1] + len(line))
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise CannotWrite(f"cannot write a temporary file: {error.strerror}") from error
