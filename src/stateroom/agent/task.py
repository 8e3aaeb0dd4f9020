"""`TaskState`: what is to be done, as part of an author's state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from stateroom.errors import InvalidState

Status = Literal["pending", "running", "done", "failed"]

_MOVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"pending": ("begin", "fail"), "running": ("complete", "fail"), "done": (), "failed": ()}
)
"""What can be done with a task, by its status."""


class StepDone(BaseModel):
    """A step of a task that was done."""

    model_config = ConfigDict(extra="forbid")

    name: str
    result: JsonValue = None


class TaskState(BaseModel):
    """A goal, and the steps that lead there; a field of this type can be in any `State`.

    It is `pending` until it begins, then `running`, and at last `done` or `failed`. What does not fit together, such as
    a task that is done with steps left, is refused when it is stored and when it is loaded.
    """

    model_config = ConfigDict(extra="forbid")

    goal: str
    status: Status = "pending"
    done: list[StepDone] = []
    """The steps that were done, with what they came to."""
    current: str | None = None
    """The step that it is at, or failed at."""
    left: list[str] = []
    """The steps after that."""
    error: str | None = None
    """Why it failed."""
    data: dict[str, JsonValue] = {}
    """Whatever else there is to know."""

    def begin(self, *steps: str) -> None:
        """Begin with the first of the steps that are left, to which these are added."""
        self._refuse_unless_possible("begin")
        self.left.extend(steps)
        if not self.left:
            raise InvalidState(("left",), "a task begins with at least one step")
        self.status = "running"
        self.current = self.left.pop(0)

    def complete(self, result: JsonValue = None) -> None:
        """Note what the current step came to, and go on to the next; after the last one, the task is done."""
        self._refuse_unless_possible("complete")
        assert self.current is not None
        self.done.append(StepDone(name=self.current, result=result))
        self.current = self.left.pop(0) if self.left else None
        if self.current is None:
            self.status = "done"

    def fail(self, error: str) -> None:
        """Give up, at the current step."""
        self._refuse_unless_possible("fail")
        self.status = "failed"
        self.error = error

    def _refuse_unless_possible(self, move: str) -> None:
        possible = _MOVES[self.status]
        if move not in possible:
            can = " or ".join(possible) or "do nothing more"
            raise InvalidState(("status",), f"a task that is {self.status} cannot {move}; it can {can}")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        status = self.status
        if status == "running" and self.current is None:
            raise ValueError("current: a task that is running is at a step, and this one is at none")
        if status in ("pending", "done") and self.current is not None:
            raise ValueError(f"current: a task that is {status} is at no step, and this one is at {self.current!r}")
        if status == "done" and self.left:
            raise ValueError(f"left: a task that is done has no steps left, and this one has {self.left[0]!r}")
        if status == "pending" and self.done:
            raise ValueError(f"done: a task that is pending has done nothing, and this one {self.done[0].name!r}")
        if status == "failed" and self.error is None:
            raise ValueError("error: a task that failed tells why, and this one does not")
        if status != "failed" and self.error is not None:
            raise ValueError(f"error: a task that is {status} has none, and this one has {self.error!r}")
        return self
