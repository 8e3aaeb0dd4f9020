"""`TaskState` in an author's state."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from stateroom import Environment, Sessions, State, tool
from stateroom.agent import Step, TaskState
from stateroom.errors import InvalidState
from stateroom.store import Store
from tests.messages import raises, says

PLAN = ["look", "cook", "eat"]


class Kitchen(State):
    task: TaskState


class KitchenEnvironment(Environment[Kitchen]):
    """Make dinner."""

    def seed(self, task: Any) -> Kitchen:
        return Kitchen(task=TaskState(goal="dinner", steps=[Step(name=name) for name in PLAN]))

    @tool
    def begin(self, state: Kitchen) -> str | None:
        """Begin."""
        state.task.begin()
        return state.task.current

    @tool
    def complete(self, state: Kitchen, result: str) -> str | None:
        """Tell what a step came to."""
        state.task.complete(result)
        return state.task.current

    @tool
    def pretend(self, state: Kitchen) -> None:
        """Say that it is done, which it is not."""
        state.task.status = "done"

    def verify(self, state: Kitchen, episode: Any) -> float:
        return float(state.task.status == "done")


def test_a_task_goes_from_step_to_step() -> None:
    task = TaskState(goal="dinner")
    task.begin("look", "cook")
    assert (task.status, task.current) == ("running", "look")
    task.complete({"eggs": 3})
    assert (task.status, task.current) == ("running", "cook")
    task.steps.append(Step(name="eat"))
    task.complete()
    task.complete("good")
    assert (task.status, task.current) == ("done", None)
    assert task.steps == [
        Step(name="look", status="done", result={"eggs": 3}),
        Step(name="cook", status="done"),
        Step(name="eat", status="done", result="good"),
    ]


def test_a_revised_task_keeps_what_is_over_and_goes_on() -> None:
    task = TaskState(goal="dinner")
    task.begin("look", "cook", "eat")
    task.complete("no gas")
    task.fail("the stove is cold")
    task.revise("order pizza", "eat")
    assert [(step.name, step.status) for step in task.steps] == [
        ("look", "done"),
        ("cook", "failed"),
        ("order pizza", "running"),
        ("eat", "pending"),
    ]
    assert (task.status, task.error) == ("running", None)
    task.revise("fast")  # also when nothing has failed
    assert [step.name for step in task.steps] == ["look", "cook", "fast"]
    task.complete()
    task.revise("wash up")  # and when all was done
    assert (task.status, task.current) == ("running", "wash up")
    with raises(InvalidState):
        task.revise()


def test_a_task_that_failed_tells_why_and_where() -> None:
    task = TaskState(goal="dinner")
    task.begin("look", "cook")
    task.fail("no eggs")
    assert (task.status, task.current, task.error) == ("failed", None, "no eggs")
    assert task.steps[0] == Step(name="look", status="failed", result="no eggs")
    TaskState.model_validate(task.model_dump())
    never = TaskState(goal="dinner")
    never.fail("no kitchen")
    TaskState.model_validate(never.model_dump())


@pytest.mark.parametrize(
    ("moves", "wrong"),
    [
        ([], "complete"),
        ([], "revise"),
        (["begin"], "begin"),
        (["begin", "complete"], "complete"),
        (["begin", "complete"], "begin"),
        (["begin", "complete"], "fail"),
        (["fail"], "begin"),
        (["fail"], "fail"),
    ],
)
def test_other_moves_are_refused(moves: list[str], wrong: str) -> None:
    given: dict[str, list[Any]] = {"begin": ["step"], "complete": [], "fail": ["why"], "revise": ["step"]}
    task = TaskState(goal="dinner")
    for move in moves:
        getattr(task, move)(*given[move])
    before = task.model_copy(deep=True)
    with raises(InvalidState):
        getattr(task, wrong)(*given[wrong])
    assert task == before


def test_a_task_without_steps_cannot_begin() -> None:
    task = TaskState(goal="dinner")
    with raises(InvalidState):
        task.begin()
    assert task.status == "pending"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("goal", {"goal": None}),
        ("status", {"status": "nearly"}),
        ("steps", {"status": "running"}),
        ("steps", {"status": "running", "steps": [{"name": name, "status": "running"} for name in PLAN]}),
        ("steps", {"steps": [{"name": "look", "status": "running"}]}),
        ("steps", {"steps": [{"name": "look", "status": "done"}]}),
        ("steps", {"status": "done", "steps": [{"name": "look", "status": "running"}]}),
        ("steps", {"status": "done", "steps": [{"name": "look"}]}),
        ("steps", {"status": "failed", "error": "why", "steps": [{"name": "look", "status": "running"}]}),
        ("name", {"steps": [{"name": 7}]}),
        ("name", {"steps": [{"result": 1}]}),
        ("error", {"error": "why"}),
        ("error", {"status": "failed"}),
        ("more", {"more": 1}),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=field):
        TaskState.model_validate({"goal": "dinner", **values})


async def test_tools_move_it_and_a_wrong_move_changes_nothing(store: Store) -> None:
    session = await Sessions(KitchenEnvironment(), store).seed({})
    result = await session.call("complete", {"result": "?"})
    assert not result.ok
    says(result.error or "")
    assert (await session.call("begin", {})).output == "look"
    result = await session.call("pretend", {})
    assert not result.ok
    says(result.error or "")
    assert session.state.task.status == "running"
    for step in ("cook", "eat", None):
        assert (await session.call("complete", {"result": "ok"})).output == step
    assert session.state.task.status == "done"
    assert (await session.verify()).reward == 1.0
