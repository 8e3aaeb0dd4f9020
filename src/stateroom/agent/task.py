"""`TaskState`: a task and its steps. It is an agent's plan, and can be a field of an author's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from stateroom.errors import InvalidState

TaskStatus = Literal["pending", "running", "done", "failed"]

OVER = ("done", "failed")

_MOVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pending": ("begin", "fail"),
        "running": ("complete", "fail", "revise"),
        "done": ("revise",),
        "failed": ("revise",),
    }
)
"""The methods that a task allows, by its status."""


class Step(BaseModel):
    """A step of a task."""

    model_config = ConfigDict(extra="forbid")

    name: str
    status: TaskStatus = "pending"
    result: JsonValue = None
    """What came of it; why it failed, if it did."""


class TaskState(BaseModel):
    """A task, and the steps that lead to its goal; a field of this type can be in any `State`.

    It is `pending` until it begins, then `running`, and at last `done` or `failed`, unless it is revised. An
    inconsistent one, such as a done task with a step left, is refused when it is stored and when it is loaded.
    """

    model_config = ConfigDict(extra="forbid")

    goal: str = ""
    task_id: str = ""
    """Tells it from other tasks."""
    steps: list[Step] = []
    """In order: those that are over, the current one, and those that are left."""
    status: TaskStatus = "pending"
    error: str | None = None
    """Why it failed."""
    data: dict[str, JsonValue] = {}
    """Any other data."""

    @property
    def current(self) -> str | None:
        """The name of the step that is running."""
        return next((step.name for step in self.steps if step.status == "running"), None)

    def begin(self, *steps: str) -> None:
        """Add steps, and begin with the first one."""
        self._check_possible("begin")
        if not (steps or self.steps):
            raise InvalidState(("steps",), "a task needs at least one step to begin")
        self._go_on(steps)

    def complete(self, result: JsonValue = None) -> None:
        """Finish the current step with its result, and go to the next; after the last step the task is done."""
        self._check_possible("complete")
        self._end_step("done", result)
        if not self._begin_next():
            self.status = "done"

    def fail(self, error: str) -> None:
        """Fail at the current step. The task ends there, unless it is revised."""
        self._check_possible("fail")
        self._end_step("failed", error)
        self.status, self.error = "failed", error

    def revise(self, *steps: str) -> None:
        """Replace the steps that are not over by others, and go on with the first of these."""
        self._check_possible("revise")
        if not steps:
            raise InvalidState(("steps",), "a task needs at least one step to go on")
        self.steps = [step for step in self.steps if step.status in OVER]
        self._go_on(steps)

    def _go_on(self, steps: Iterable[str]) -> None:
        self.steps.extend(Step(name=name) for name in steps)
        self.status, self.error = "running", None
        self._begin_next()

    def _end_step(self, status: TaskStatus, result: JsonValue) -> None:
        for step in self.steps:
            if step.status == "running":
                step.status, step.result = status, result

    def _begin_next(self) -> bool:
        step = next((step for step in self.steps if step.status == "pending"), None)
        if step is not None:
            step.status = "running"
        return step is not None

    def _check_possible(self, move: str) -> None:
        possible = _MOVES[self.status]
        if move not in possible:
            raise InvalidState(("status",), f"a {self.status} task cannot {move}; it can {' or '.join(possible)}")

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        status, found = self.status, [step.status for step in self.steps]
        running, pending = found.count("running"), found.count("pending")
        if running != (status == "running"):
            raise ValueError(f"steps: a {status} task has {'one' if status == 'running' else 'no'} running step")
        if status == "pending" and pending < len(found):
            raise ValueError("steps: a pending task has no step that is over")
        if status == "done" and pending:
            raise ValueError("steps: a done task has no step left")
        if (status == "failed") != (self.error is not None):
            raise ValueError(f"error: a {status} task has {'one' if status == 'failed' else 'none'}")
        return self
