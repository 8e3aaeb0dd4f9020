"""Sources: rows of JSONL, CSV, Parquet and Hugging Face datasets on disk, read one by one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from stateroom.errors import BadData, BadTask, InvalidArguments, NotFound, needs
from stateroom.jsonl import line_of, open_regular, parse_object, read_lines
from stateroom.rollout.rows import Row

ROWS_PER_BATCH = 1000
"""Rows of a columnar file in memory at a time."""


class SourceRow(NamedTuple):
    """A row of a source, and its place."""

    where: str
    """Such as `tasks.jsonl, line 3`."""
    data: bytes | Row
    """The row or, from a JSONL file, its unparsed line."""

    def row(self) -> Row:
        """The row as data. Raises `BadTask` if its line is invalid."""
        if not isinstance(self.data, bytes):
            return self.data
        try:
            return parse_object(self.data)
        except ValueError as error:
            raise BadTask(f"{self.where}: {error}") from None

    def line(self) -> bytes:
        """The row as a line of a JSONL file, unchanged if it was read from one."""
        return self.data + b"\n" if isinstance(self.data, bytes) else line_of(self.data)


def read_source(path: Path, other: str = "") -> Iterable[SourceRow]:
    """The rows of a file, by its suffix, or of a folder saved by `datasets`.

    They are read lazily. A file with an unknown suffix is read as one with the suffix `other`. Raises `NotFound` if the
    file does not exist, and `BadData` if it cannot be read.
    """
    if not path.exists():
        raise NotFound(f"the file {path} does not exist")
    reader = _dataset if path.is_dir() else _READERS.get(path.suffix.lower()) or _READERS.get(other)
    if reader is None:
        raise InvalidArguments(
            f"{path} must end with {', '.join(_READERS)}, or be a folder saved by datasets.save_to_disk"
        )
    return reader(path)


def _jsonl(path: Path) -> Iterator[SourceRow]:
    return (SourceRow(f"{path}, line {number}", line) for number, line in read_lines(path))


def _csv(path: Path, delimiter: str = ",") -> Iterator[SourceRow]:
    """The rows of a CSV file. Cells with a JSON object or list are parsed; all others are texts."""
    with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        number = 1
        try:
            for cells in reader:
                where, number = f"{path}, line {number + 1}", reader.line_num
                if None in cells:
                    raise BadData(f"{where}: more cells than column names in the first line")
                yield SourceRow(where, {name: _cell(text) for name, text in cells.items() if text is not None})
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadData(f"{path}, after line {number}: {error}") from None


def _tsv(path: Path) -> Iterator[SourceRow]:
    return _csv(path, "\t")


def _cell(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _parquet(path: Path) -> Iterator[SourceRow]:
    pyarrow = _pyarrow("a Parquet file")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _numbered(path, file.iter_batches(ROWS_PER_BATCH))
    except pyarrow.ArrowException as error:
        raise BadData(f"{path} is not a Parquet file: {error}") from None


def _dataset(path: Path) -> Iterator[SourceRow]:
    """The rows of a folder saved by `Dataset.save_to_disk`: Arrow streams, listed in `state.json`."""
    state = path / "state.json"
    if not state.is_file():
        splits = [str(each.parent) for each in sorted(path.glob("*/state.json"))]
        why = f"it has several splits; name one of {', '.join(splits)}" if splits else "state.json is missing"
        raise NotFound(f"{path} is not a dataset on disk: {why}")
    try:
        names = [str(each["filename"]) for each in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, LookupError, TypeError) as error:
        raise BadData(f"{state} does not list the files of a dataset: {error!r}") from None
    return _numbered(path, (batch for name in names for batch in _batches(path / name)))


def _batches(path: Path) -> Iterator[Any]:
    pyarrow = _pyarrow("a dataset")
    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            for batch in stream:
                yield from (batch.slice(start, ROWS_PER_BATCH) for start in range(0, batch.num_rows, ROWS_PER_BATCH))
    except (OSError, pyarrow.ArrowException) as error:
        raise BadData(f"{path} is not an Arrow stream: {error}") from None


def _numbered(path: Path, batches: Iterable[Any]) -> Iterator[SourceRow]:
    """The rows of columnar batches, as JSON data. A null counts as a missing field."""
    number = 0
    for batch in batches:
        for cells in batch.to_pylist():
            number += 1
            row = {name: value for name, value in cells.items() if value is not None}
            yield SourceRow(f"{path}, row {number}", to_jsonable_python(row, bytes_mode="base64"))


def _pyarrow(what: str) -> Any:
    with needs(what, "data"):
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415
    return pyarrow


_READERS: dict[str, Callable[[Path], Iterator[SourceRow]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
