"""The help desk of a shop: a customer wants a refund, and the agent finds out for which item and how much."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from stateroom import Environment, Episode, SessionInfo, State, Task, ToolError, Verdict, tool
from stateroom.agent import SimulatedUser, UserSide
from stateroom.gallery.refund import shop
from stateroom.gallery.refund.policies import NoisyPolicy, ReferencePolicy
from stateroom.model import Model

ITEMS = {"kettle": 39.9, "lamp": 64.0, "rucksack": 89.5, "radio": 120.0, "office chair": 249.0, "bicycle": 680.0}
NAMES = ("amara", "boris", "chen", "dana", "emil", "fatima", "goran", "hana")

YES = ("yes", "y", "ok", "approve", "approved", "true")
"""The answers of a manager that approve a refund."""


class Settled(BaseModel):
    """A settled order."""

    due: float
    """The refund that the agent chose; 0 if it declined."""
    paid: float


class Desk(State):
    orders: dict[str, shop.Order] = {}
    settled: dict[str, Settled] = {}
    wish: int = 0
    """The index of the customer's current wish."""
    puzzled: int = 0
    """The number of messages that the customer did not understand."""
    customer: UserSide = UserSide()
    """The customer's side of the conversation, if a model plays the customer."""


class RefundTask(Task):
    email: str
    orders: dict[str, shop.Order]
    wishes: list[shop.Wish] = Field(min_length=1)
    manager: Literal["yes", "no"] | None = None
    """The manager's answer to a refund above the limit; None to ask a person."""

    @field_validator("wishes")
    @classmethod
    def _are_of_orders(cls, wishes: list[shop.Wish], info: ValidationInfo) -> list[shop.Wish]:
        for wish in wishes:
            if wish.order_id not in info.data.get("orders", {}):
                raise ValueError(f"unknown order {wish.order_id!r}")
        return wishes


class RefundEnvironment(Environment[Desk, RefundTask]):
    """Settle a customer's returns by the rules of the shop.

    The customer answers by rules, or is played by `user_model`.
    """

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def __init__(self, user_model: Model | str | None = None) -> None:
        self.customer = None if user_model is None else SimulatedUser(user_model, shop.INSTRUCTIONS)

    def seed(self, task: RefundTask) -> Desk:
        return Desk(orders=task.orders)

    @tool(effect="read")
    def list_orders(self, state: Desk, email: str) -> list[dict[str, str]]:
        """List the orders of a customer.

        Args:
            email: The customer's e-mail address.
        """
        wanted = email.strip().lower()
        return [
            {"order_id": order_id, "item": order.item}
            for order_id, order in state.orders.items()
            if order.email.lower() == wanted
        ]

    @tool(effect="read")
    def look_up_order(self, state: Desk, order_id: str) -> dict[str, Any]:
        """Get an order: its customer, item and price, and the days since its delivery.

        Args:
            order_id: The order's number.
        """
        order = _order(state, order_id)
        return {**order.model_dump(), "settled": order_id in state.settled}

    @tool
    def refund(
        self, state: Desk, session: SessionInfo, ask: Callable[[str], Any], order_id: str, amount: float
    ) -> dict[str, Any]:
        """Pay back money for an order, which settles it. Above 200, a manager is asked first.

        Args:
            order_id: The order's number.
            amount: The amount to pay back.
        """
        order = _unsettled(state, order_id)
        if not 0 < amount <= order.price:
            raise ToolError(f"amount: must be above 0 and at most the price, {order.price:.2f}")
        manager = "not asked"
        if amount > shop.LIMIT:
            answer = session.task.manager
            if answer is None:
                answer = str(ask(f"A refund of {amount:.2f} for the {order.item} (order {order_id}): yes or no?"))
            manager = "yes" if answer.strip().lower() in YES else "no"
        paid = 0.0 if manager == "no" else amount
        state.settled[order_id] = Settled(due=amount, paid=paid)
        return {"paid": paid, "manager": manager}

    @tool
    def decline(self, state: Desk, order_id: str) -> dict[str, bool]:
        """Decline a refund for an order, which settles it.

        Args:
            order_id: The order's number.
        """
        _unsettled(state, order_id)
        state.settled[order_id] = Settled(due=0.0, paid=0.0)
        return {"success": True}

    async def reply(self, state: Desk, task: RefundTask, rng: Random, message: str) -> str | None:
        if self.customer is not None:
            about = shop.role(task.email, task.wishes)
            return await self.customer.reply(state.customer, message, about=about, seed=rng.getrandbits(32))
        if state.wish == len(task.wishes):
            return None
        wish = task.wishes[state.wish]
        if wish.order_id in state.settled:
            state.wish += 1
            return shop.ANOTHER if state.wish < len(task.wishes) else None
        answer = shop.answer(task.email, wish, message)
        if answer is None:
            state.puzzled += 1
            return shop.PUZZLED if state.puzzled < shop.MAX_PUZZLED else None
        return answer

    def verify(self, state: Desk, episode: Episode) -> Verdict:
        """1 if each of the customer's wishes is settled by the rules and no other order is, else 0."""
        task: RefundTask = episode.task
        expected = {wish.order_id: shop.due(task.orders[wish.order_id], wish.reason) for wish in task.wishes}
        dues = {order_id: settled.due for order_id, settled in state.settled.items()}
        right = sum(abs(dues.get(order_id, -1) - amount) < 0.005 for order_id, amount in expected.items())
        others = len(dues.keys() - expected.keys())
        solved = right == len(expected) and not others
        beside = f", and {others} that nobody asked for" if others else ""
        return Verdict(
            reward=float(solved),
            metrics={
                "settled_right": right / len(expected),
                "others_settled": float(others),
                "paid": round(sum(settled.paid for settled in state.settled.values()), 2),
            },
            reason=f"{right} of {len(expected)} settled by the rules{beside}",
        )

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: a customer who wants to return one or two of their orders, and orders of other customers."""
        mine, *others = rng.sample(NAMES, 3)
        number = rng.randint(1000, 8000)
        orders: dict[str, dict[str, Any]] = {}
        for name, items in ((mine, rng.sample(sorted(ITEMS), 4)), *((other, list(ITEMS)[::2]) for other in others)):
            for item in items:
                number += rng.randint(1, 90)
                price = round(ITEMS[item] * rng.uniform(0.8, 1.2), 2)
                orders[str(number)] = {
                    "email": f"{name}@example.com",
                    "item": item,
                    "price": price,
                    "days": min(rng.randint(1, 90), rng.randint(1, 90)),
                }
        bought = [order_id for order_id, order in orders.items() if order["email"].startswith(mine)]
        wishes = [
            {"order_id": order_id, "item": orders[order_id]["item"], "reason": rng.choice(sorted(shop.DAYS))}
            for order_id in rng.sample(bought, rng.randint(1, 2))
        ]
        return {
            "responses_create_params": {
                "input": [{"role": "system", "content": shop.RULES}, {"role": "user", "content": shop.OPENING}]
            },
            "email": f"{mine}@example.com",
            "orders": orders,
            "wishes": wishes,
            "manager": rng.choice(["yes", "no"]),
        }


def _order(state: Desk, order_id: str) -> shop.Order:
    order = state.orders.get(order_id)
    if order is None:
        raise ToolError(f"unknown order {order_id!r}")
    return order


def _unsettled(state: Desk, order_id: str) -> shop.Order:
    order = _order(state, order_id)
    if order_id in state.settled:
        raise ToolError(f"order {order_id} is already settled")
    return order
