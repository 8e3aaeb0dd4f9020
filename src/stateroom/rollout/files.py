"""The files of a run, all named after its rollouts file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from stateroom.errors import IS_POSIX, CannotWrite
from stateroom.jsonl import line_of, replace_lines
from stateroom.locks import try_lock
from stateroom.rollout.lazy import json_pieces


@dataclass(frozen=True)
class RunFiles:
    """The paths of a run's files."""

    rollouts: Path

    def _beside(self, ending: str) -> Path:
        return self.rollouts.parent / (self.rollouts.stem + ending)

    @property
    def inputs(self) -> Path:
        """The tasks as they were run, one row per episode."""
        return self._beside("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """Failed episodes, which have no reward."""
        return self._beside("_failures.jsonl")

    @property
    def tool_failures(self) -> Path:
        """Tool calls that failed because of errors in the environment; their episodes continued."""
        return self._beside("_tool_failures.jsonl")

    @property
    def metrics(self) -> Path:
        return self._beside("_aggregate_metrics.json")

    @property
    def description(self) -> Path:
        """What was run, how, and when."""
        return self._beside("_run.json")

    @property
    def sessions(self) -> Path:
        """The default store."""
        return self._beside("_sessions.db")

    @property
    def index(self) -> Path:
        """The index of the rows; a cache that may be deleted."""
        return self._beside("_index.db")

    @property
    def all(self) -> tuple[Path, ...]:
        """All files that a run writes, except the store."""
        return (self.rollouts, self.inputs, self.failures, self.tool_failures, self.metrics, self.description)

    @property
    def begun(self) -> bool:
        """Whether the run has begun: its inputs or rollouts exist."""
        return self.inputs.exists() or (self.rollouts.exists() and self.rollouts.stat().st_size > 0)

    def prepare(self, *, force: bool = False, resume: bool = False) -> None:
        """Create the folder. Raises `CannotWrite` if files of an earlier run exist, unless `force` removes them.

        With `resume`, an empty rollouts file is ignored: its process was killed before it wrote the inputs.
        """
        if force:
            self.remove()
        elif resume and not self.begun:
            self.rollouts.unlink(missing_ok=True)
        for path in self.all:
            ensure_new(path)
        try:
            self.rollouts.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"cannot write to {self.rollouts.parent}: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the files of an earlier run and its default store. Raises `CannotWrite` if a process uses it."""
        store = (self._beside(f"_sessions.db{ending}") for ending in ("", "-wal", "-shm"))
        with self.lock():
            for path in (*self.all, self.index, *store):
                if IS_POSIX or path != self.inputs:
                    path.unlink(missing_ok=True)
        self.inputs.unlink(missing_ok=True)  # Windows cannot remove it while it is open and locked

    def begin(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Write the inputs and an empty rollouts file."""
        try:
            self.rollouts.touch(exist_ok=False)
        except OSError as error:
            raise CannotWrite(f"cannot write {self.rollouts}: {error.strerror}") from error
        replace_lines(self.inputs, map(line_of, inputs))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run's files against other processes. Raises `CannotWrite` if another process holds the lock."""
        if not self.inputs.exists():  # the run has not begun
            yield
            return
        with self.inputs.open("rb") as file:
            if not try_lock(file):
                raise CannotWrite(f"another process is writing to {self.rollouts}; wait until it has finished")
            yield

    def write_metrics(self, agent_ref: Any, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of an agent."""
        pieces = json_pieces({"agent_ref": agent_ref, **metrics}, b"\n  ")
        replace_lines(self.metrics, chain([b"[\n  "], pieces, [b"\n]\n"]))

    def as_dict(self) -> dict[str, str]:
        """The existing files by name."""
        named = {
            "rollouts": self.rollouts,
            "inputs": self.inputs,
            "failures": self.failures,
            "tool_failures": self.tool_failures,
            "metrics": self.metrics,
            "run": self.description,
            "sessions": self.sessions,
        }
        return {name: str(path) for name, path in named.items() if path.exists()}


@dataclass(frozen=True)
class TreeFiles(RunFiles):
    """The paths of the files of a run that branches."""

    @property
    def tree(self) -> Path:
        """The nodes of all trees, each after its parent."""
        return self._beside("_tree.jsonl")

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.tree, *super().all)

    def as_dict(self) -> dict[str, str]:
        return super().as_dict() | ({"tree": str(self.tree)} if self.tree.exists() else {})


def ensure_new(path: Path) -> None:
    """Raise `CannotWrite` if the file exists."""
    if path.exists():
        raise CannotWrite(f"{path} already exists; give another `output`, or replace it with `force`")
