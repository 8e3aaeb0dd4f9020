"""Plans: the steps with which an agent does what it is asked, written and revised by its model.

A plan is a `TaskState`, which can also be a field of an author's state. The loop offers the model two tools that change
it, and each result is the plan as it is then. So the conversation in the log has every plan, and the newest one stays
in the model's view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, model_validator

from stateroom.agent.agent import Outcome, Workspace, WrappedWorkspace
from stateroom.agent.calls import UNTRIED, StateTools
from stateroom.agent.window import ANSWERS, Window, calls_of_outputs
from stateroom.errors import InvalidState
from stateroom.model import Item, kind_of
from stateroom.session import Result, result_of

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
    """The outcome, or the reason for a failure."""


class TaskState(BaseModel):
    """A task and the steps towards its goal; any `State` can have a field of this type.

    It is `pending` until it begins, then `running`, and finally `done` or `failed`, unless it is revised. An
    inconsistent task, such as a done one with a pending step, is refused when it is stored or loaded.
    """

    model_config = ConfigDict(extra="forbid")

    goal: str = ""
    task_id: str = ""
    """An id of your choice."""
    steps: list[Step] = []
    """The steps in order: completed or failed, current, and pending."""
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
        """Finish the current step with its result, and begin the next; after the last step the task is done."""
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
        """Replace the current and pending steps, and begin the first new one."""
        self._check_possible("revise")
        if not steps:
            raise InvalidState(("steps",), "a revised task needs at least one step")
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
        status, statuses = self.status, [step.status for step in self.steps]
        running, pending = statuses.count("running"), statuses.count("pending")
        if running != (status == "running"):
            raise ValueError(f"steps: a {status} task must have {'one' if status == 'running' else 'no'} running step")
        if status == "pending" and pending < len(statuses):
            raise ValueError("steps: a pending task must have only pending steps")
        if status == "done" and pending:
            raise ValueError("steps: a done task must have no pending steps")
        if (status == "failed") != (self.error is not None):
            raise ValueError(
                f"error: a {status} task must {'have an error' if status == 'failed' else 'not have an error'}"
            )
        return self


def make_plan(state: TaskState, steps: list[str]) -> dict[str, Any]:
    """Write down the steps with which you will do what you are asked. Do this before anything else.

    Call it again when the plan has to change, as after a failure: steps that are over stay, and these follow them.

    Args:
        steps: What to do in each step, in a few words.
    """
    (state.begin if state.status == "pending" else state.revise)(*steps)
    return _shown(state)


def end_step(state: TaskState, result: str, failed: bool = False) -> dict[str, Any]:
    """End the current step of your plan, and begin the next.

    Args:
        result: What came of the step, or why it failed.
        failed: Whether it failed. Then make another plan.
    """
    if failed:
        state.fail(result)
    else:
        state.complete(result)
    return _shown(state)


def _shown(plan: TaskState) -> dict[str, Any]:
    return plan.model_dump(exclude={"goal", "data"}, exclude_none=True)


@cache
def plan_tools() -> StateTools:
    """The tools with which a model changes its plan."""
    return StateTools("the plan's tool", [make_plan, end_step])


class Planner(WrappedWorkspace):
    """A workspace whose agent has a plan: calls of the plan's tools change it, and all other calls pass."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._plan = TaskState()
        self._is_pinned = False

    def load(self, window: Window, task_id: str) -> None:
        """Take the plan of a task from the conversation, if it has one."""
        plans = [plan for plan in plans_in(window.items) if plan.task_id == task_id]
        self._plan = plans[-1] if plans else TaskState(task_id=task_id)
        self._is_pinned = False

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        if name not in plan_tools():
            return await super().call(name, arguments, call_id=call_id)
        self._is_pinned = False
        try:
            return await plan_tools().on(self._plan).call(name, arguments, call_id=call_id)
        except InvalidState as error:
            return Result(False, None, str(error), "tool_error")

    def pin(self, window: Window) -> None:
        """Keep the newest plan in the model's view, and no older one."""
        if not self._is_pinned:
            places = [place for place, _ in _plans(window.items)]
            for place in places:
                window.pinned[place] = place == places[-1]
            self._is_pinned = True

    def settings(self, items: Sequence[Item]) -> dict[str, Any]:
        """The settings of the next request: a model that has no plan must make one, and also after a failure."""
        if self._plan.status in ("pending", "failed") or _failed(items):
            return {"tool_choice": {"type": "function", "name": make_plan.__name__}}
        return {}


def plans_in(items: Sequence[Item]) -> list[TaskState]:
    """The plans in a conversation, from the first to the newest."""
    return [plan for _, plan in _plans(items)]


def _plans(items: Sequence[Item]) -> Iterator[tuple[int, TaskState]]:
    """The plans in a conversation, each with the place of the result that has it."""
    for place, call in calls_of_outputs(items, [*map(kind_of, items)]).items():
        if items[call].get("name") in plan_tools():
            with suppress(ValidationError):  # the call failed, or its result was cleared
                yield place, TaskState.model_validate(result_of(items[place]))


def _failed(items: Sequence[Item]) -> bool:
    """Whether a call of the newest answer ran and failed."""
    results = takewhile(lambda item: kind_of(item) not in ANSWERS, reversed(items))
    return any(_error_code(item) not in (None, *UNTRIED) for item in results if kind_of(item) == "output")


def _error_code(result: Item) -> Any:
    match result_of(result):
        case {"error": {"code": code}}:
            return code
    return None
