"""Plans: the steps with which an agent does what it is asked, written and revised by its model.

A plan is a `TaskState`. The loop offers the model two tools that change it, and each result is the plan as it is then.
So the conversation in the log has every plan, and the newest one stays in the model's view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from stateroom.agent.agent import Outcome, Workspace, WrappedWorkspace
from stateroom.agent.calls import UNTRIED
from stateroom.agent.state_tools import StateTools
from stateroom.agent.task import TaskState
from stateroom.agent.window import ANSWERS, Window, calls_of_outputs
from stateroom.errors import InvalidState
from stateroom.model import Item, kind_of
from stateroom.session import Result, result_of


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
        found = [plan for plan in plans_in(window.items) if plan.task_id == task_id]
        self._plan = found[-1] if found else TaskState(task_id=task_id)
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
    """What the plan in a conversation has been, from the first to the newest."""
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
