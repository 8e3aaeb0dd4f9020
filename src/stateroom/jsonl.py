"""JSONL files: read, append and replace rows, and repair a file after a crash."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Self

from pydantic_core import PydanticSerializationError, from_json, to_json

from stateroom.errors import CannotWrite, NotFound

BOM = b"\xef\xbb\xbf"

NONBLOCKING: int = getattr(os, "O_NONBLOCK", 0)
"""Opens a pipe without waiting for a writer; Windows has no pipes among its files."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; raises `OSError` for pipes and devices, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | NONBLOCKING)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers. Raises `NotFound` if the file cannot be read."""
    try:
        with open_regular(path) as file:
            yield from ((number, line) for number, line, _ in numbered_lines(file) if line)
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error


def numbered_lines(file: Iterable[bytes]) -> Iterator[tuple[int, bytes, int]]:
    """The stripped lines of a file, each with its number and its size in the file."""
    for number, line in enumerate(file, 1):
        yield number, (line.removeprefix(BOM) if number == 1 else line).strip(), len(line)


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises `ValueError` if the line is not one."""
    try:
        value = _parse(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error} (is the line cut short?)") from None
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {type(value).__name__}")
    return value


def _parse(line: bytes) -> Any:
    try:
        return from_json(line)  # three times as fast
    except ValueError:
        return json.loads(line.decode())  # also accepts half of a surrogate pair


def line_of(row: Mapping[str, Any]) -> bytes:
    """A row as a line. Half of a surrogate pair, which UTF-8 cannot encode, is written as a JSON escape."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def quick_line_of(row: Mapping[str, Any]) -> bytes:
    """A faster `line_of` for rows that contain only JSON data."""
    try:
        return to_json(row, inf_nan_mode="constants") + b"\n"
    except (PydanticSerializationError, ValueError):  # half of a surrogate pair
        return line_of(row)


class Appender:
    """Appends rows to a file, each in one write, so finished rows survive a crash. Opens on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        self.write(line_of(row))

    def write(self, line: bytes) -> None:
        """Append an encoded row."""
        try:
            if self._file is None:
                self._file = self.path.open("ab", buffering=0)
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror}") from error


def replace_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the lines of a file atomically: on an error, the file is unchanged."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.writelines(lines)
        new.replace(path)
    except BaseException as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error
        raise


def repair(path: Path) -> None:
    """Repair the last line of a file after a process was killed while writing it.

    A truncated row is removed; a whole row without a line break gets one.
    """
    end, line = 0, b"\n"
    with path.open("rb+") as file:
        for line in file:
            end += len(line)
        if line.endswith(b"\n"):
            return
        try:
            parse_object(line)
        except ValueError:
            file.truncate(end - len(line))
        else:
            file.write(b"\n")
