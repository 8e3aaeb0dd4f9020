"""The customer: by rules, or as a model is told to play them. They say what they want only when they are asked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel

from stateroom.gallery.refund.rules import Reason

OPENING = "Hello! I would like to have my money back for something that I bought from you."
ANOTHER = "Thank you. There is something else that I would like to give back."
PUZZLED = "I do not know what you mean. I just want my money back."

PATIENCE = 3
"""How often a customer lets an agent say what leads nowhere."""

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


class Wish(BaseModel):
    """Something that the customer wants to give back."""

    order_id: str
    item: str
    reason: Reason


def answer(email: str, wish: Wish, message: str) -> str | None:
    """What the customer says to a message; None if it asks for nothing that they know."""
    told = [
        said
        for about, said in (
            (ABOUT_EMAIL, f"My e-mail address is {email}."),
            (ABOUT_ITEM, f"It is the {wish.item}."),
            (ABOUT_REASON, TROUBLES[wish.reason]),
        )
        if about.search(message)
    ]
    return " ".join(told) or None


def role(email: str, wishes: Sequence[Wish]) -> str:
    """What a model that plays the customer is told of an episode."""
    wanted = "\n".join(f"- the {wish.item}. {TROUBLES[wish.reason]}" for wish in wishes)
    return (
        f"Your e-mail address is {email}. You do not know any order numbers. You want your money back for these, one "
        f"after the other:\n{wanted}\nYou have begun the conversation with: {OPENING}"
    )
