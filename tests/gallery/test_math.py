"""math: results that build on each other, on quantities that nobody tells, and no reward for a guess."""

import json
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, run
from stateroom.errors import BadTask
from stateroom.gallery import Ledger, MathEnvironment
from stateroom.rollout import generate_tasks
from stateroom.session import Session, Verdict
from stateroom.store import Store
from tests.messages import raises, says

TASK: dict[str, Any] = {
    "quantities": {"eggs": 30, "price": 6, "fuel": 11, "feed": 17, "zero": 0},
    "steps": [
        {"result": "income", "formula": {"operation": "multiply", "left": "eggs", "right": "price"}},
        {
            "result": "rest",
            "formula": {"operation": "subtract", "left": "income", "right": "fuel"},
            "test": "income",
            "limit": 170,
            "otherwise": {"operation": "subtract", "left": "income", "right": "feed"},
        },
        {"result": "share", "formula": {"operation": "divide", "left": "rest", "right": "price"}},
    ],
}


def compute(result: str, operation: str, left: str, right: str) -> tuple[str, dict[str, Any]]:
    return "compute", {"result": result, "operation": operation, "left": left, "right": right}


def submit(answer: int) -> tuple[str, dict[str, Any]]:
    return "submit_answer", {"answer": answer}


INCOME = compute("income", "multiply", "eggs", "price")
REST = compute("rest", "subtract", "income", "fuel")
OTHER_REST = compute("rest", "subtract", "income", "feed")
SHARE = compute("share", "divide", "rest", "price")


async def seeded(store: Store, **changes: Any) -> Session[Ledger]:
    return await Sessions(MathEnvironment(), store).seed(TASK | changes)


async def judged(store: Store, *calls: tuple[str, dict[str, Any]]) -> Verdict:
    session = await seeded(store)
    for call in calls:
        await session.call(*call)
    return await session.verify()


@pytest.mark.parametrize(
    "calls",
    [
        [INCOME, REST, SHARE, submit(28)],
        [INCOME, OTHER_REST, REST, SHARE, submit(27), submit(28)],  # what is done again counts
        [INCOME, compute("beside", "add", "fuel", "feed"), REST, SHARE, submit(28)],
    ],
)
async def test_all_results_and_the_answer_get_the_reward(store: Store, calls: Any) -> None:
    verdict = await judged(store, *calls)
    assert (verdict.reward, verdict.components) == (1.0, {"steps": 1.0, "answer": 1.0})


@pytest.mark.parametrize(
    ("calls", "steps", "answer"),
    [
        ([], 0, 0),  # an empty episode
        ([submit(170)], 0, 0),  # the only number in the prompt
        ([submit(28)], 0, 1),  # the right answer, by chance
        ([INCOME, REST, SHARE], 1, 0),  # all is known, and nothing is submitted
        ([INCOME, OTHER_REST, SHARE, submit(27)], 1 / 3, 0),  # the other way, without a look at the income
        ([SHARE, REST, INCOME, submit(28)], 1 / 3, 1),  # all at once: what has to wait for others fails
        ([INCOME, submit(28)], 1 / 3, 1),
        ([INCOME, REST, SHARE, submit(28), submit(0)], 1, 0),
    ],
)
async def test_no_trick_gets_a_reward(store: Store, calls: Any, steps: float, answer: float) -> None:
    verdict = await judged(store, *calls)
    assert (verdict.reward, verdict.components) == (0.0, {"steps": steps, "answer": answer})


@pytest.mark.parametrize(
    "call",
    [
        compute("x", "add", "eggs", "12"),  # only names: no way to put a number in
        compute("x", "add", "rest", "eggs"),
        compute("eggs", "add", "eggs", "eggs"),
        compute("x", "divide", "eggs", "zero"),
    ],
)
async def test_what_cannot_be_computed_is_refused_in_words(store: Store, call: Any) -> None:
    session = await seeded(store)
    result = await session.call(*call)
    says(result.error or "")
    assert (result.code, session.revision) == ("tool_error", 1)


async def test_results_cannot_outgrow_the_memory(store: Store) -> None:
    session = await seeded(store)
    await session.call(*INCOME)
    results = [await session.call(*compute("income", "multiply", "income", "income")) for _ in range(4)]
    assert [result.code for result in results] == [None, None, "tool_error", "tool_error"]


async def test_a_task_that_cannot_be_computed_is_refused(store: Store) -> None:
    with raises(BadTask):
        await seeded(store, steps=TASK["steps"][1:])


async def test_tasks_are_all_different_and_their_prompts_tell_no_quantity(store: Store) -> None:
    rows = generate_tasks(MathEnvironment, 120, seed=7)
    prompts = [row["responses_create_params"]["input"][1]["content"] for row in rows]
    assert len(set(prompts)) == len({json.dumps(row["quantities"]) for row in rows}) == len(rows)
    branches = set()
    for row, prompt in zip(rows, prompts, strict=True):
        limits = {step.get("limit") for step in row["steps"]}
        assert not {word for word in prompt.replace(",", " ").split() if word.isdecimal()} - set(map(str, limits))
        session = await Sessions(MathEnvironment(), store).seed(row)
        await run(Agent(MathEnvironment.policies["reference"]()), session)
        values = session.state.results
        branches |= {values[step["test"]] > step["limit"] for step in row["steps"] if step.get("test")}
    assert branches == {True, False}
