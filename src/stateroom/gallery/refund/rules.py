"""What the shop pays back, and what an agent is told of that."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Reason = Literal["damaged", "wrong_item", "unwanted"]

DAYS = {"damaged": 60, "wrong_item": 60, "unwanted": 14}
"""For how long after the delivery a reason counts."""

KEPT = 0.15
"""The share of the price that the shop keeps of what is only unwanted."""

LIMIT = 200.0
"""What an agent may pay back alone."""

RULES = f"""You work at the help desk of a shop. A customer writes to you: find out their e-mail address, which of the
things that they bought it is about, and what is wrong with it. Look up the order, and settle it by these rules:
- What arrived damaged, or is the wrong item: the whole price, up to {DAYS["damaged"]} days after the delivery.
- What is fine but no longer wanted: the price less {KEPT:.0%}, up to {DAYS["unwanted"]} days after the delivery.
- All else is declined.
A refund above {LIMIT:.0f} needs a manager's approval, which the tool asks for. If the manager says no, it is settled.
Settle each thing that the customer wants to give back once, and tell them what you did."""


class Order(BaseModel):
    """Something that was bought."""

    email: str
    item: str
    price: float
    days: int
    """How many days ago it was delivered."""


def due(order: Order, reason: Reason) -> float:
    """What the customer gets back; 0 if that is declined."""
    if order.days > DAYS[reason]:
        return 0.0
    return round(order.price * (1 - KEPT), 2) if reason == "unwanted" else order.price
