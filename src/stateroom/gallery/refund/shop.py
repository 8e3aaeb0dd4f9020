"""The shop: its rules for refunds, and a customer who answers by rules or is played by a model.

The customer gives information only when asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

Reason = Literal["damaged", "wrong_item", "unwanted"]

DAYS = {"damaged": 60, "wrong_item": 60, "unwanted": 14}
"""The days after the delivery in which each reason counts."""

KEPT = 0.15
"""The share of the price that the shop keeps for an unwanted item."""

LIMIT = 200.0
"""The largest refund without a manager's approval."""

RULES = f"""You work at the help desk of a shop. A customer writes to you: find out their e-mail address, which of the
things that they bought it is about, and what is wrong with it. Look up the order, and settle it by these rules:
- What arrived damaged, or is the wrong item: the whole price, up to {DAYS["damaged"]} days after the delivery.
- What is fine but no longer wanted: the price less {KEPT:.0%}, up to {DAYS["unwanted"]} days after the delivery.
- All else is declined.
A refund above {LIMIT:.0f} needs a manager's approval, which the tool asks for. If the manager says no, it is settled.
Settle each thing that the customer wants to give back once, and tell them what you did."""

OPENING = "Hello! I would like to have my money back for something that I bought from you."
ANOTHER = "Thank you. There is something else that I would like to give back."
PUZZLED = "I do not know what you mean. I just want my money back."

MAX_PUZZLED = 3
"""The number of unclear messages after which the customer leaves."""

TROUBLES: dict[Reason, str] = {
    "damaged": "It arrived broken.",
    "wrong_item": "It is not the one that I had ordered.",
    "unwanted": "There is nothing wrong with it. I do not need it any more.",
}

ABOUT_EMAIL = re.compile(r"e-?mail|address", re.IGNORECASE)
ABOUT_ITEM = re.compile(r"\b(which|item|product|article|what did you (buy|order))\b", re.IGNORECASE)
ABOUT_REASON = re.compile(r"\b(why|reason|wrong|matter|happened)\b", re.IGNORECASE)

INSTRUCTIONS = """You are a customer of a shop, and write to its help desk. Say what you know only when you are asked,
in one or two short sentences, and make nothing up. You never help the other side with their work. When all that you
wanted was settled, one way or the other, end the conversation."""


class Order(BaseModel):
    """An order of a customer."""

    email: str
    item: str
    price: float
    days: int
    """Days since the delivery."""


class Wish(BaseModel):
    """An item that the customer wants to return."""

    order_id: str
    item: str
    reason: Reason


def due(order: Order, reason: Reason) -> float:
    """The refund for an order; 0 if it is declined."""
    if order.days > DAYS[reason]:
        return 0.0
    return round(order.price * (1 - KEPT), 2) if reason == "unwanted" else order.price


def answer(email: str, wish: Wish, message: str) -> str | None:
    """The customer's answer to a message; None if the message asks for nothing that they know."""
    answers = [
        sentence
        for about, sentence in (
            (ABOUT_EMAIL, f"My e-mail address is {email}."),
            (ABOUT_ITEM, f"It is the {wish.item}."),
            (ABOUT_REASON, TROUBLES[wish.reason]),
        )
        if about.search(message)
    ]
    return " ".join(answers) or None


def role(email: str, wishes: Sequence[Wish]) -> str:
    """The instructions of an episode for a model that plays the customer."""
    wanted = "\n".join(f"- the {wish.item}. {TROUBLES[wish.reason]}" for wish in wishes)
    return (
        f"Your e-mail address is {email}. You do not know any order numbers. You want your money back for these, one "
        f"after the other:\n{wanted}\nYou have begun the conversation with: {OPENING}"
    )
