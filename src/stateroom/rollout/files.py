"""The files of a run, all named after its rollouts file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from stateroom.errors import NotFound


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes."""

    rollouts: Path

    def _beside(self, ending: str) -> Path:
        return self.rollouts.with_name(self.rollouts.stem + ending)

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
        """Make the folder; refuse to write over an earlier run."""
        if self.rollouts.exists():
            raise NotFound(f"{self.rollouts} is there already; give another --output, or remove it")
        try:
            self.rollouts.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotFound(f"cannot write to {self.rollouts.parent}: {error.strerror}") from error

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
    """Appends rows to a JSONL file, each flushed as it comes, so that what is finished is kept. Opens on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole JSONL file."""
    with Appender(path) as appender:
        for row in rows:
            appender.append(row)
