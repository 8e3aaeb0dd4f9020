"""`TaskState` in an author's state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import ValidationError

from stateroom import Environment, Sessions, State, tool
from stateroom.agent.task import StepDone, TaskState
from stateroom.errors import InvalidState
from stateroom.state import encode_patch
from stateroom.store import Store, open_store

PLAN = ["look", "cook", "eat"]


class Kitchen(State):
    task: TaskState


class KitchenEnvironment(Environment[Kitchen]):
    """Make dinner."""

    def seed(self, task: Any) -> Kitchen:
        return Kitchen(task=TaskState(goal="dinner", left=PLAN))

    @tool
    def begin(self, state: Kitchen) -> str | None:
        """Begin."""
        state.task.begin()
        return state.task.current

    @tool
    def complete(self, state: Kitchen, result: str) -> str | None:
        """Tell what a step came to."""
        state.task.complete(result)
        state.task.data[f"result {len(state.task.done)}"] = result
        return state.task.current

    @tool
    def fail(self, state: Kitchen, why: str) -> None:
        """Give up."""
        state.task.fail(why)

    @tool
    def pretend(self, state: Kitchen) -> None:
        """Say that it is done, which it is not."""
        state.task.status = "done"

    def verify(self, state: Kitchen, episode: Any) -> float:
        return float(state.task.status == "done")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> AsyncIterator[Store]:
    async with open_store(fresh_url(request.param)) as opened:
        yield opened


def test_a_task_goes_from_step_to_step() -> None:
    task = TaskState(goal="dinner")
    task.begin("look", "cook")
    assert (task.status, task.current, task.left) == ("running", "look", ["cook"])
    task.complete({"eggs": 3})
    assert (task.status, task.current, task.left) == ("running", "cook", [])
    task.left.append("eat")  # plans change
    task.complete()
    task.complete("good")
    assert (task.status, task.current, task.left) == ("done", None, [])
    assert task.done == [
        StepDone(name="look", result={"eggs": 3}),
        StepDone(name="cook"),
        StepDone(name="eat", result="good"),
    ]


def test_a_task_that_failed_tells_why_and_where() -> None:
    task = TaskState(goal="dinner")
    task.begin("look", "cook")
    task.fail("no eggs")
    assert (task.status, task.current, task.left, task.error) == ("failed", "look", ["cook"], "no eggs")
    TaskState.model_validate(task.model_dump())
    never = TaskState(goal="dinner")
    never.fail("no kitchen")
    TaskState.model_validate(never.model_dump())


@pytest.mark.parametrize(
    ("moves", "wrong", "can"),
    [
        ([], "complete", "begin or fail"),
        (["begin"], "begin", "complete or fail"),
        (["begin", "complete"], "complete", ""),
        (["begin", "complete"], "begin", ""),
        (["begin", "complete"], "fail", ""),
        (["fail"], "begin", ""),
        (["fail"], "fail", ""),
    ],
)
def test_other_moves_are_refused(moves: list[str], wrong: str, can: str) -> None:
    given: dict[str, list[Any]] = {"begin": ["step"], "complete": [], "fail": ["why"]}
    task = TaskState(goal="dinner")
    for move in moves:
        getattr(task, move)(*given[move])
    before = task.model_copy(deep=True)
    with pytest.raises(InvalidState, match=rf"status: a {task.status} task cannot {wrong}; .*{can}"):
        getattr(task, wrong)(*given[wrong])
    assert task == before


def test_a_task_without_steps_cannot_begin() -> None:
    task = TaskState(goal="dinner")
    with pytest.raises(InvalidState, match="left: a task needs at least one step to begin"):
        task.begin()
    assert task.status == "pending"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("goal", {"goal": None}),
        ("status", {"status": "nearly"}),
        ("current", {"status": "running"}),
        ("current", {"current": "look"}),
        ("current", {"status": "done", "current": "look"}),
        ("left", {"status": "done", "left": ["look"]}),
        ("left", {"left": [7]}),
        ("done", {"done": [{"name": "look"}]}),
        ("done", {"done": [{"result": 1}]}),
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
    assert "a pending task cannot complete; it can begin or fail" in str(result.error)
    assert (await session.call("begin", {})).output == "look"
    result = await session.call("pretend", {})
    assert not result.ok
    assert "task: current: a done task has no step, and this one has 'look'" in str(result.error)
    assert session.state.task.status == "running"
    for step in ("cook", "eat", None):
        assert (await session.call("complete", {"result": "ok"})).output == step
    assert session.state.task.status == "done"
    assert (await session.verify()).reward == 1.0


async def test_a_fork_and_a_rewind_have_the_task_of_then(store: Store) -> None:
    session = await Sessions(KitchenEnvironment(), store).seed({})
    await session.call("begin", {})
    await session.call("complete", {"result": "eggs"})
    twin = await session.fork()
    await session.rewind(to=2)
    await session.call("fail", {"why": "no eggs"})
    await twin.call("complete", {"result": "omelette"})
    assert (session.state.task.status, session.state.task.current) == ("failed", "look")
    again = await Sessions(KitchenEnvironment(), store).open(twin.id)
    assert [step.name for step in again.state.task.done] == ["look", "cook"]
    assert again.state.task.data == {"result 1": "eggs", "result 2": "omelette"}


async def test_a_step_changes_only_what_it_must(store: Store) -> None:
    session = await Sessions(KitchenEnvironment(), store).seed({})
    await session.call("begin", {})
    await session.call("complete", {"result": "x" * 1000})
    await session.call("complete", {"result": "ok"})
    sizes = [len(encode_patch(entry.patch)) async for entry in session.log() if entry.kind == "call"]
    assert sizes[-1] < 150  # nothing of the step before
