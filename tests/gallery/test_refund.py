"""refund: a customer who has to be asked, rules that decide, and a manager who may be a person."""

from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, run
from stateroom.errors import BadTask
from stateroom.gallery import RefundEnvironment
from stateroom.model import Model, Scripted
from stateroom.session import Session, Verdict
from stateroom.store import Store
from tests.agent.models import Remembers
from tests.messages import raises, says

ORDERS = {
    "1": {"email": "ann@example.com", "item": "lamp", "price": 60.0, "days": 5},
    "2": {"email": "ann@example.com", "item": "bicycle", "price": 700.0, "days": 50},
    "3": {"email": "bob@example.com", "item": "lamp", "price": 61.0, "days": 5},
}


def wish(order_id: str, reason: str) -> dict[str, Any]:
    return {"order_id": order_id, "item": ORDERS[order_id]["item"], "reason": reason}


async def seeded(store: Store, *wishes: dict[str, Any], user_model: Model | None = None, **more: Any) -> Session[Any]:
    asked = {"responses_create_params": {"input": "Hello! I want my money back."}, "email": "ann@example.com"}
    row = {**asked, "orders": ORDERS, "wishes": [*wishes], **more}
    return await Sessions[Any](RefundEnvironment(user_model), store).seed(row)


async def judged(store: Store, *calls: tuple[str, dict[str, Any]], wishes: Any = None, **more: Any) -> Verdict:
    session = await seeded(store, *(wishes or [wish("1", "damaged")]), **more)
    for name, arguments in calls:
        await session.call(name, arguments)
    return await session.verify()


@pytest.mark.parametrize(
    ("reason", "days", "amount"),
    [
        ("damaged", 60, 80.0),
        ("damaged", 61, 0.0),
        ("wrong_item", 60, 80.0),
        ("wrong_item", 61, 0.0),
        ("unwanted", 14, 68.0),
        ("unwanted", 15, 0.0),
    ],
)
async def test_what_is_due_gets_the_reward(store: Store, reason: str, days: int, amount: float) -> None:
    orders = {"1": {**ORDERS["1"], "price": 80.0, "days": days}}
    settles = ("refund", {"order_id": "1", "amount": amount}) if amount else ("decline", {"order_id": "1"})
    verdict = await judged(store, settles, wishes=[wish("1", reason)], orders=orders)
    assert (verdict.reward, verdict.metrics["paid"]) == (1.0, amount)


PAY = ("refund", {"order_id": "1", "amount": 60.0})


@pytest.mark.parametrize(
    ("calls", "reward", "right", "others", "paid"),
    [
        ([PAY], 1, 1, 0, 60),
        ([], 0, 0, 0, 0),
        ([("refund", {"order_id": "1", "amount": 59.99})], 0, 0, 0, 59.99),
        ([("refund", {"order_id": "1", "amount": 61.0}), PAY], 1, 1, 0, 60),  # more than the price is refused
        ([("refund", {"order_id": "1", "amount": 0})], 0, 0, 0, 0),
        ([("decline", {"order_id": "1"})], 0, 0, 0, 0),
        ([("decline", {"order_id": "1"}), PAY], 0, 0, 0, 0),  # what is settled is settled
        ([PAY, PAY], 1, 1, 0, 60),
        ([("refund", {"order_id": "3", "amount": 61.0})], 0, 0, 1, 61),  # the same item, but Bob's
        ([PAY, ("decline", {"order_id": "2"})], 0, 1, 1, 60),
        ([("refund", {"order_id": "9", "amount": 1.0})], 0, 0, 0, 0),
    ],
)
async def test_the_state_is_judged(
    store: Store, calls: Any, reward: float, right: float, others: float, paid: float
) -> None:
    verdict = await judged(store, *calls)
    assert verdict.reward == reward
    assert verdict.metrics == {"settled_right": right, "others_settled": others, "paid": paid}


async def test_all_wishes_count(store: Store) -> None:
    both = [wish("1", "damaged"), wish("2", "unwanted")]
    assert (await judged(store, PAY, wishes=both)).metrics["settled_right"] == 0.5
    assert (await judged(store, PAY, ("decline", {"order_id": "2"}), wishes=both)).reward == 1.0


@pytest.mark.parametrize("wishes", [[], [{"order_id": "9", "item": "lamp", "reason": "damaged"}]])
async def test_a_task_without_a_wish_that_can_be_granted_is_refused(store: Store, wishes: Any) -> None:
    with raises(BadTask):
        await seeded(store, *wishes)


@pytest.mark.parametrize(("manager", "paid"), [("yes", 700.0), ("no", 0.0)])
async def test_the_tasks_manager_decides_above_the_limit(store: Store, manager: str, paid: float) -> None:
    session = await seeded(store, wish("2", "damaged"), manager=manager)
    assert (await session.call("refund", {"order_id": "2", "amount": 700.0})).output == {
        "paid": paid,
        "manager": manager,
    }
    verdict = await session.verify()
    assert (verdict.reward, verdict.metrics["paid"]) == (1.0, paid)


@pytest.mark.parametrize(
    ("given", "paid"), [("yes", 700.0), (" Approved ", 700.0), (True, 700.0), ("no", 0.0), (7, 0.0)]
)
async def test_without_one_a_person_is_asked_and_the_session_waits(store: Store, given: Any, paid: float) -> None:
    session = await seeded(store, wish("2", "damaged"))
    agent = Agent(RefundEnvironment.policies["reference"]())
    waiting = await run(agent, session)
    assert waiting.question == "A refund of 700.00 for the bicycle (order 2): yes or no?"
    assert session.state.settled == {}
    await session.agent.answer(given)
    assert (await run(agent, session)).status == "completed"
    assert session.state.settled["2"].paid == paid
    assert (await session.verify()).reward == 1.0


async def test_the_customer_says_what_is_asked_for_and_no_more(store: Store) -> None:
    session = await seeded(store, wish("1", "damaged"))
    for message, said in (
        ("Your e-mail address, please?", "My e-mail address is ann@example.com."),
        ("Which item is it?", "It is the lamp."),
        ("What is wrong with it?", "It arrived broken."),
        ("Which product, and why?", "It is the lamp. It arrived broken."),
    ):
        assert await session.reply(message, call_id=message) == said


async def test_the_customer_goes_on_to_the_next_wish_when_one_is_settled_and_then_leaves(store: Store) -> None:
    session = await seeded(store, wish("1", "damaged"), wish("2", "unwanted"))
    assert await session.reply("Which item?", call_id="a") == "It is the lamp."
    await session.call(*PAY)
    says(str(await session.reply("You get 60 back.", call_id="b")))
    assert await session.reply("Which item?", call_id="c") == "It is the bicycle."
    await session.call("decline", {"order_id": "2"})
    assert await session.reply("I am sorry.", call_id="d") is None
    assert await session.reply("Hello?", call_id="e") is None


async def test_a_customer_who_is_never_asked_anything_loses_patience(store: Store) -> None:
    session = await seeded(store, wish("1", "damaged"))
    trajectory = await run(Agent(Scripted(["Hm.", "Well.", "Let me see.", "Hm."])), session)
    said = [item["content"] for item in trajectory.output if item.get("role") == "user"]
    assert (trajectory.status, said) == ("completed", [said[0]] * 2)
    says(said[0])
    assert (await session.verify()).reward == 0.0


async def test_the_model_is_told_what_the_customer_wants(store: Store) -> None:
    customer = Remembers("Hello.")
    session = await seeded(store, wish("1", "damaged"), wish("2", "unwanted"), user_model=customer)
    assert await session.reply("Hello!", call_id="a") == "Hello."
    instructions = customer.asked[0].settings["instructions"]
    for part in ("ann@example.com", "the lamp. It arrived broken.", "the bicycle. There is nothing wrong"):
        assert part in instructions
    assert "order 1" not in instructions
