"""`TaskState`: a goal and its steps, as a field of an author's state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from stateroom.errors import InvalidState

TaskStatus = Literal["pending", "running", "done", "failed"]

_MOVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"pending": ("begin", "fail"), "running": ("complete", "fail"), "done": (), "failed": ()}
)
"""The methods that a task allows, by its status."""


class StepDone(BaseModel):
    """A finished step of a task."""

    model_config = ConfigDict(extra="forbid")

    name: str
    result: JsonValue = None


class TaskState(BaseModel):
    """A goal, and the steps that lead there; a field of this type can be in any `State`.

    It is `pending` until it begins, then `running`, and at last `done` or `failed`. An inconsistent one, such as a done
    task with steps left, is refused when it is stored and when it is loaded.
    """

    model_config = ConfigDict(extra="forbid")

    goal: str
    status: TaskStatus = "pending"
    done: list[StepDone] = []
    """The finished steps, with their results."""
    current: str | None = None
    """The current step, or the one that failed."""
    left: list[str] = []
    """The steps after the current one."""
    error: str | None = None
    """Why it failed."""
    data: dict[str, JsonValue] = {}
    """Any other data."""

    def begin(self, *steps: str) -> None:
        """Add steps, and begin with the first one that is left."""
        self._check_possible("begin")
        self.left.extend(steps)
        if not self.left:
            raise InvalidState(("left",), "a task needs at least one step to begin")
        self.status = "running"
        self.current = self.left.pop(0)

    def complete(self, result: JsonValue = None) -> None:
        """Finish the current step with its result, and go to the next; after the last step the task is done."""
        self._check_possible("complete")
        assert self.current is not None
        self.done.append(StepDone(name=self.current, result=result))
        self.current = self.left.pop(0) if self.left else None
        if self.current is None:
            self.status = "done"

    def fail(self, error: str) -> None:
        """Fail at the current step."""
        self._check_possible("fail")
        self.status = "failed"
        self.error = error

    def _check_possible(self, move: str) -> None:
        possible = _MOVES[self.status]
        if move not in possible:
            rest = f"it can {' or '.join(possible)}" if possible else "it has ended"
            raise InvalidState(("status",), f"a {self.status} task cannot {move}; {rest}")

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        status = self.status
        if status == "running" and self.current is None:
            raise ValueError("current: a running task needs a step, and this one has none")
        if status in ("pending", "done") and self.current is not None:
            raise ValueError(f"current: a {status} task has no step, and this one has {self.current!r}")
        if status == "done" and self.left:
            raise ValueError(f"left: a done task has no steps left, and this one has {self.left[0]!r}")
        if status == "pending" and self.done:
            raise ValueError(f"done: a pending task has no finished steps, and this one has {self.done[0].name!r}")
        if status == "failed" and self.error is None:
            raise ValueError("error: a failed task needs an error, and this one has none")
        if status != "failed" and self.error is not None:
            raise ValueError(f"error: a {status} task has none, and this one has {self.error!r}")
        return self
