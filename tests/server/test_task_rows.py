"""The task row, which a client sends twice: to seed a session, and to verify it."""

from typing import Any

import pytest

from stateroom import Environment, Episode, State, Task, tool
from stateroom.errors import MissingField
from stateroom.session import Rescorer
from tests.messages import raises
from tests.plain_counter import PlainCounterEnvironment

ROW = {"responses_create_params": {"input": "add 6"}, "initial_count": 3, "expected_count": 9}

SAID: Any = {"response": {"output": []}}

TUTORIAL = {"initial_count": 3}
"""The row that the tutorial of NeMo Gym's counter seeds: `expected_count` comes with verify."""


async def session_of(served: Any, name: str = "counter") -> Any:
    [head] = await served.services.store.heads()
    return await served.services.environments[name].sessions.open(head.id, include_closed=True)


@pytest.mark.parametrize("field", ["initial_count", "expected_count"])
async def test_a_row_that_contradicts_the_seeded_one_is_refused(serve: Any, store_url: str, field: str) -> None:
    served = await serve(PlainCounterEnvironment(), store=store_url)
    await served.post("/seed_session", ROW)
    await served.post("/increment_counter", {"count": 6})
    for path in ("/verify", "/step"):
        status, refused = await served.post(path, {**ROW, **SAID, field: 4})
        assert (status, refused["error"]["code"], refused["error"]["message"].partition(":")[0]) == (
            409,
            "conflict",
            field,
        )
    for body in ({**ROW, **SAID}, SAID, {**ROW, **SAID, "expected_count": 9.0}):
        assert (await served.good("/verify", body))["reward"] == 1.0
    assert (await served.post("/verify", {**ROW, **SAID, field: 4}))[0] == 409


async def test_what_runners_add_to_a_row_is_no_contradiction(served: Any) -> None:
    runners = {"_ng_rollout_index": 0, "agent_ref": {"name": "one"}, "responses_create_params": {"input": "add 6"}}
    await served.post("/seed_session", {**ROW, **runners, "_ng_task_index": 1, "score": float("nan")})
    runners = {"_ng_rollout_index": 1, "agent_ref": {"name": "two"}, "responses_create_params": {"input": []}}
    assert (await served.post("/verify", {**ROW, **SAID, **runners, "score": float("nan"), "new": 1}))[0] == 200


class PriceTask(Task):
    price: float
    tolerance: float = 0.5


class Offer(State):
    value: float = 0.0


class PriceEnvironment(Environment[Offer, PriceTask]):
    """Guess a price, which only the verifier reads."""

    @tool
    def offer(self, state: Offer, value: float) -> str:
        """Make an offer."""
        state.value = value
        return "made"

    @tool
    def peek(self, state: Offer, session: Any) -> list[Any]:
        """Look at the task."""
        return [session.task.tolerance, getattr(session.task, "price", None)]

    def verify(self, state: Offer, episode: Episode) -> float:
        return float(abs(state.value - episode.task.price) <= episode.task.tolerance)


async def test_a_default_that_was_seeded_is_kept_too(serve: Any) -> None:
    served = await serve(PriceEnvironment())
    await served.post("/seed_session", {"price": "7"})
    status, refused = await served.post("/verify", {**SAID, "price": 7, "tolerance": 99})
    assert (status, refused["error"]["message"].partition(":")[0]) == (409, "tolerance")
    assert (await served.post("/verify", {**SAID, "price": 7, "tolerance": 0.5}))[1]["reward"] == 0.0


async def test_a_field_that_only_verify_reads_may_come_with_it(serve: Any, store_url: str) -> None:
    served = await serve(PlainCounterEnvironment(), store=store_url)
    assert (await served.post("/seed_session", TUTORIAL))[0] == 200
    await served.post("/increment_counter", {"count": 2})
    status, refused = await served.post("/verify", SAID)
    assert (status, refused["error"]["code"]) == (422, "invalid_task")
    assert "expected_count" in refused["error"]["message"]
    body = {**TUTORIAL, **SAID, "expected_count": 5}
    for _ in range(2):
        assert (await served.good("/verify", body))["reward"] == 1.0
    assert await served.post("/verify", SAID) == (200, {**SAID, "reward": 1.0})
    status, refused = await served.post("/verify", {**SAID, "expected_count": 6})
    assert (status, refused["error"]["message"].partition(":")[0]) == (409, "expected_count")


async def test_until_it_comes_the_field_is_missing_and_all_else_is_there(serve: Any) -> None:
    served = await serve(PriceEnvironment())
    await served.post("/seed_session", {"tolerance": 1})
    assert await served.post("/peek") == (200, [1.0, None])
    session = await session_of(served, "price")
    with raises(MissingField):
        session.task.price  # noqa: B018
    [seed] = [entry async for entry in session.log(kinds={"seed"})]
    assert (seed.input, seed.facts["lacks"]) == ({"tolerance": 1}, ["price"])
    await served.post("/verify", {**SAID, "price": 1.0})
    assert (await session_of(served, "price")).task.price == 1.0


async def test_a_fork_is_given_the_field_itself(serve: Any, store_url: str) -> None:
    served = await serve(PriceEnvironment(), store=store_url)
    await served.post("/seed_session", {})
    await served.post("/offer", {"value": 3})
    session = await session_of(served, "price")
    early = await session.fork()
    await served.post("/verify", {**SAID, "price": 3})
    late = await session.fork(at=2)
    for fork, price, reward in [(early, 4, 0.0), (late, 3, 1.0)]:
        assert (await fork.verify(SAID["response"], row={"price": price})).reward == reward
        assert fork.task.price == price


async def test_rescoring_reads_the_field_from_the_verdict(serve: Any, shared_url: str) -> None:
    served = await serve(PriceEnvironment(), store=shared_url)
    await served.post("/seed_session", {"tolerance": 0.1})
    await served.post("/offer", {"value": 3})
    await served.post("/verify", {**SAID, "price": 3})
    [head] = await served.services.store.heads()
    rescored = await Rescorer(PriceEnvironment(), served.services.store).judge(head.id, SAID["response"])
    assert (rescored.verdict.reward, rescored.row) == (1.0, {"tolerance": 0.1, "price": 3})
