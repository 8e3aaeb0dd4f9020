"""`TaskState`: the moves of a task, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from stateroom.agent import Step, TaskState
from stateroom.errors import InvalidState
from tests.messages import raises

PLAN = ["look", "cook", "eat"]


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
