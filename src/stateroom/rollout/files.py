"""The files of a run, all named after its rollouts file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from stateroom.errors import CannotWrite
from stateroom.jsonl import line_of, replace_lines
from stateroom.locks import try_lock
from stateroom.rollout.lazy import json_pieces


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes."""

    rollouts: Path

    def _beside(self, ending: str) -> Path:
        return self.rollouts.parent / (self.rollouts.stem + ending)

    @property
    def inputs(self) -> Path:
        """The tasks as they were run, one row per episode."""
        return self._beside("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """Episodes that failed and so have no reward."""
        return self._beside("_failures.jsonl")

    @property
    def tool_failures(self) -> Path:
        """Tool calls that failed because of the author's code; their episodes went on."""
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
        """Where each row is; a cache, which may be deleted."""
        return self._beside("_index.db")

    @property
    def all(self) -> tuple[Path, ...]:
        """The files that a run writes, besides the store."""
        return (self.rollouts, self.inputs, self.failures, self.tool_failures, self.metrics, self.description)

    @property
    def begun(self) -> bool:
        """Whether a run has begun: it has inputs, or else rollouts."""
        return self.inputs.exists() or (self.rollouts.exists() and self.rollouts.stat().st_size > 0)

    def prepare(self, *, force: bool = False, resume: bool = False) -> None:
        """Make the folder. `CannotWrite` if the files of an earlier run are there, unless `force` removes them.

        With `resume`, an empty rollouts file is no run: its process was killed before it wrote the inputs.
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
        """Remove the files of an earlier run, and its default store; `CannotWrite` if a process is at work on it."""
        store = (self._beside(f"_sessions.db{ending}") for ending in ("", "-wal", "-shm"))
        with self.lock():
            for path in (*self.all, self.index, *store):
                if path != self.inputs:
                    path.unlink(missing_ok=True)
        self.inputs.unlink(missing_ok=True)  # not before its lock has ended: Windows removes no open file

    def begin(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Write the inputs, and an empty rollouts file."""
        try:
            self.rollouts.touch(exist_ok=False)
        except OSError as error:
            raise CannotWrite(f"cannot write {self.rollouts}: {error.strerror}") from error
        replace_lines(self.inputs, map(line_of, inputs))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to the run's files; `CannotWrite` if one does. It ends with the process."""
        if not self.inputs.exists():  # there is no run
            yield
            return
        with self.inputs.open("rb") as file:
            if not try_lock(file):
                raise CannotWrite(f"another process is at work on {self.rollouts}: wait until it has ended")
            yield

    def write_metrics(self, agent_ref: Any, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of an agent's episodes."""
        pieces = json_pieces({"agent_ref": agent_ref, **metrics}, b"\n  ")
        replace_lines(self.metrics, chain([b"[\n  "], pieces, [b"\n]\n"]))

    def as_dict(self) -> dict[str, str]:
        """The files that exist now, by name."""
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
    """Where a run that branches writes."""

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
    """Raise `CannotWrite` if there is a file."""
    if path.exists():
        raise CannotWrite(f"{path} is there already; give another `output`, or replace it with `force`")
