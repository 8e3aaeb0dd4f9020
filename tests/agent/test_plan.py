"""An agent's plan: when its model must write one, what becomes of it, and how much of it is shown."""

import json
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, Context, DropOldest, Threads, recall, run
from stateroom.agent.plan import plans_in
from stateroom.model import Item, function_call, function_call_output
from stateroom.store import Store
from tests.agent.trail import ROW, SCRIPT, TrailEnvironment, Walking, ended, steps, walker
from tests.messages import says


async def walked(store: Store, script: list[list[Item]], **agent: Any) -> tuple[Walking, Any]:
    session = await Sessions[Any](TrailEnvironment(), store).seed(ROW)
    model = Walking(script)
    await run(Agent(model, plan=True, **agent), session)
    return model, session


def demands(model: Walking) -> list[int]:
    """The answers that had to be a plan."""
    found = {step: choice for step, (_, _, choice) in model.shown.items() if choice is not None}
    assert all(choice == {"type": "function", "name": "make_plan"} for choice in found.values())
    return [*found]


async def test_a_plan_is_made_first_and_revised_after_a_failed_call_and_a_failed_step(store: Store) -> None:
    model, session = await walked(store, SCRIPT)
    assert demands(model) == [0, 3, 6]
    plans = (await recall(session.agent)).plans
    assert [[f"{step.name}: {step.status}" for step in plan.steps] for plan in plans] == [
        ["walk: running", "rest: pending"],
        ["walk more: running", "rest: pending"],
        ["walk more: done", "rest: running"],
        ["walk more: done", "rest: failed"],
        ["walk more: done", "rest: failed", "lie down: running"],
        ["walk more: done", "rest: failed", "lie down: done"],
    ]
    assert [plan.status for plan in plans] == ["running", "running", "running", "failed", "running", "done"]
    assert (plans[3].error, plans[-1].steps[0].result) == ("no bench", "at 7")


async def test_a_model_that_makes_no_plan_is_not_held_up(store: Store) -> None:
    model, session = await walked(store, [[function_call("walk", "w", miles=3)]])
    assert (demands(model), session.state.at) == ([0, 1], 3)


@pytest.mark.parametrize("call", [function_call("walk", "w"), function_call("fly", "f"), function_call("look", "l")])
async def test_a_call_that_could_not_run_or_went_well_asks_for_no_other_plan(store: Store, call: Item) -> None:
    model, _ = await walked(store, [[steps("go")], [call]])
    assert demands(model) == [0]


@pytest.mark.parametrize("call", [ended("done"), steps(), function_call("make_plan", "p", steps="all")])
async def test_a_wrong_call_says_why_and_leaves_the_plan_as_it_is(store: Store, call: Item) -> None:
    model, session = await walked(store, [[call], [steps("go")]])
    items = (await recall(session.agent)).items
    says(json.loads(items[1]["output"])["error"]["message"])
    assert demands(model) == [0, 1]
    assert [plan.current for plan in plans_in(items)] == ["go"]


async def test_the_newest_plan_stays_in_view_and_no_older_one(store: Store) -> None:
    looks = [[function_call("look", "l")] for _ in range(20)]
    model, _ = await walked(
        store,
        [[steps("one", "two", "three")], *looks, [ended("seen")], *looks],
        context=Context(messages=8, strategies=[DropOldest()]),
    )
    for step, (_, items, _) in model.shown.items():
        current = [plan.current for plan in plans_in(items)]
        assert current[-1:] == ([] if step == 0 else ["one"] if step <= 21 else ["two"])
    assert current == ["two"]


async def test_each_task_has_a_plan_of_its_own(store: Store) -> None:
    threads = Threads(Sessions[Any](TrailEnvironment(), store))
    thread, model = await threads.create(), Walking([[steps("a")], [ended("so")]])
    model.script = [*model.script, *model.script]
    for text in ("Go.", "Go again."):
        await threads.add(thread, text)
        await threads.run(thread, walker(model))
    session = await threads.sessions.open(thread.id)
    assert demands(model) == [0, 3]
    assert [plan.task_id for plan in (await recall(session.agent)).plans] == ["0", "0", "1", "1"]


def test_the_result_of_another_tool_may_look_the_same_and_is_no_plan() -> None:
    plan = {"task_id": "0", "status": "done", "steps": []}
    items = [function_call("look", "l"), function_call_output("l", json.dumps(plan))]
    assert plans_in(items) == []
