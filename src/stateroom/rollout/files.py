"""The files of a run, all named after its rollouts file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic_core import PydanticSerializationError, to_json

from stateroom.errors import CannotWrite


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes."""

    rollouts: Path

    def _beside(self, ending: str) -> Path:
        return self.rollouts.parent / (self.rollouts.stem + ending)

    @property
    def inputs(self) -> Path:
        """The tasks as they were run, one row an episode."""
        return self._beside("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """Episodes that broke down and so have no reward."""
        return self._beside("_failures.jsonl")

    @property
    def metrics(self) -> Path:
        return self._beside("_aggregate_metrics.json")

    @property
    def sessions(self) -> Path:
        """The default store."""
        return self._beside("_sessions.db")

    def prepare(self) -> None:
        """Make the folder; refuse to write over, or into, an earlier run."""
        for path in (self.rollouts, self.inputs, self.failures, self.metrics):
            if path.exists():
                raise CannotWrite(f"{path} is there already; give another --output, or remove it")
        try:
            self.rollouts.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"cannot write to {self.rollouts.parent}: {error.strerror}") from error

    def begin(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Write the inputs, and an empty rollouts file for the episodes to come."""
        try:
            self.rollouts.touch(exist_ok=False)
        except OSError as error:
            raise CannotWrite(f"cannot write {self.rollouts}: {error.strerror}") from error
        write_whole(self.inputs, map(line_of, inputs))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from adding to the run's files; `CannotWrite` if one does. It ends with the process."""
        if not self.inputs.exists():  # there is no run
            yield
            return
        with self.inputs.open("rb") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise CannotWrite(f"another process is at work on {self.rollouts}: wait until it has ended") from None
            yield

    def write_metrics(self, agent: Any, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of an agent's episodes."""
        found = [{"agent_ref": agent, **metrics}]
        try:
            written = to_json(found, indent=2, inf_nan_mode="constants")  # many times as fast
        except ValueError:  # half a surrogate pair
            written = json.dumps(found, indent=2).encode()
        self.metrics.write_bytes(written + b"\n")

    def as_dict(self) -> dict[str, str]:
        """The files that are there now."""
        named = {
            "rollouts": self.rollouts,
            "inputs": self.inputs,
            "failures": self.failures,
            "metrics": self.metrics,
            "sessions": self.sessions,
        }
        return {name: str(path) for name, path in named.items() if path.exists()}


class Appender:
    """Appends rows to a JSONL file, each in one piece as it comes, so that what is finished is kept, and kept whole.

    Opens on first use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        self.write(line_of(row))

    def write(self, line: bytes) -> None:
        """Append a row that is a line already."""
        try:
            if self._file is None:
                self._file = self.path.open("ab", buffering=0)
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror}") from error


def line_of(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSONL; half a surrogate pair, which UTF-8 cannot have, stays the JSON escape that it was."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def quick_line_of(row: Mapping[str, Any]) -> bytes:
    """The same, for a row that is known to be JSON data."""
    try:
        return to_json(row, inf_nan_mode="constants") + b"\n"
    except (PydanticSerializationError, ValueError):  # half a surrogate pair
        return line_of(row)


def write_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Let a file have these lines and no others, all of them or, should that fail, what it had before."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.writelines(lines)
        new.replace(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from error


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole JSONL file."""
    with Appender(path) as appender:
        for row in rows:
            appender.append(row)
