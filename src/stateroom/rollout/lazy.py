"""Sequences whose items are created on access, so a long one is never in memory."""

from __future__ import annotations

import json
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from os import SEEK_END
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, Generic, TypeVar, overload
from weakref import finalize

from pydantic_core import to_json

from stateroom.errors import CannotWrite
from stateroom.jsonl import parse_object, quick_line_of
from stateroom.rollout.rows import Row

SCALARS = frozenset({bool, int, float, str, type(None)})

MAX_ITEMS = 100
"""The most items of a sequence that are written together with the surrounding object."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LazySequence(Sequence[T_co]):
    """Reads like a list, but creates its items on each access."""

    @abstractmethod
    def _item(self, index: int) -> T_co:
        """Create the item at a non-negative index."""

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...

    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        found = range(len(self))[index]
        return self._item(found) if isinstance(found, int) else LazyMap(self._item, found)

    def __iter__(self) -> Iterator[T_co]:
        return map(self._item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazySequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} items>"


class LazyMap(LazySequence[T_co], Generic[T, T_co]):
    """The results of a function for a sequence of keys."""

    def __init__(self, make: Callable[[T], T_co], keys: Sequence[T]) -> None:
        self._make = make
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def _item(self, index: int) -> T_co:
        return self._make(self._keys[index])


class SpooledRows(LazySequence[Row]):
    """Rows of JSON data in a temporary file that lives as long as this object, with 8 bytes in memory each.

    Each access returns a new copy.
    """

    def __init__(self) -> None:
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - it is closed with this object
        finalize(self, self._file.close)
        self._turn = Lock()  # threads share the place in the file: `os.pread`, which has its own, is not on Windows
        self._ends = array("Q", [0])
        """The start of the first row, and the end of each row."""

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _item(self, index: int) -> Row:
        start, end = self._ends[index : index + 2]
        with self._turn:
            self._file.seek(start)
            line = self._file.read(end - start)
        return parse_object(line)

    def append(self, row: Row) -> None:
        line = quick_line_of(row)
        self._ends.append(self._ends[-1] + len(line))
        try:
            with self._turn:
                self._file.seek(0, SEEK_END)
                while line:
                    line = line[self._file.write(line) :]
        except OSError as error:
            raise CannotWrite(f"cannot write a temporary file: {error.strerror}") from error


def plain(value: Any) -> Any:
    """A value with lazy sequences converted to lists."""
    if isinstance(value, dict):
        return {name: each if type(each) in SCALARS else plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, LazySequence) else value


def json_pieces(value: Any, newline: bytes = b"\n") -> Iterator[bytes]:
    """A value as indented JSON, in pieces. `newline` is a line break with the indent of the next line."""
    inner = newline + b"  "
    if isinstance(value, LazySequence):
        parts = (json_pieces(each, inner) if _is_long(each) else [_json(plain(each), inner)] for each in value)
        yield from _enclosed(b"[", parts, b"]", newline)
    elif isinstance(value, dict) and not SCALARS.issuperset(map(type, value.values())):
        fields = (chain([_json(name) + b": "], json_pieces(each, inner)) for name, each in value.items())
        yield from _enclosed(b"{", fields, b"}", newline)
    else:
        yield _json(value, newline)


def _is_long(value: dict[str, Any]) -> bool:
    """Whether an object contains a sequence that is too long to write at once."""
    return any(type(each) not in SCALARS and len(each) > MAX_ITEMS for each in value.values())


def _enclosed(start: bytes, parts: Iterable[Iterable[bytes]], end: bytes, newline: bytes) -> Iterator[bytes]:
    yield start
    between = b""
    for part in parts:
        yield between + newline + b"  "
        yield from part
        between = b","
    yield newline + end if between else end


def _json(value: Any, newline: bytes = b"\n") -> bytes:
    try:
        text = to_json(value, indent=2, inf_nan_mode="constants")  # many times as fast
    except ValueError:  # half of a surrogate pair
        text = json.dumps(value, indent=2).encode()
    return text.replace(b"\n", newline)
