"""Policies for the help desk."""

from __future__ import annotations

import json
import re
from typing import Any

from stateroom.gallery.refund.shop import TROUBLES, Order, Reason, due
from stateroom.model import (
    Item,
    Noisy,
    Policy,
    function_call,
    last_user_text,
    message,
    newest_turn,
    outputs_of,
    text_of,
)


class ReferencePolicy(Policy):
    """Asks for the required information, looks up the order, and settles it by the rules."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        text = last_user_text(conversation)
        about = re.search(r"It is the (.+?)\. ", text)
        if about is None:
            asked = "Which item is it about, and what is wrong with it?"
            known = _email(conversation) is not None
            return [message(asked if known else f"What is your e-mail address? {asked}")]
        results = outputs_of(newest_turn(conversation))
        if len(results) < 2:
            return [self._look(results, conversation, about[1])]
        order_id = _order_id(results[0], about[1])
        if len(results) == 2:
            order = Order(**{name: results[1][name] for name in Order.model_fields})
            return [self._settle(order_id, due(order, _reason(text)))]
        return [message(_outcome(results[2], about[1]))]

    def _look(self, results: list[Any], conversation: list[Item], item: str) -> Item:
        if not results:
            return function_call("list_orders", "orders", email=_email(conversation) or "")
        return function_call("look_up_order", "order", order_id=_order_id(results[0], item))

    def _settle(self, order_id: str, amount: float) -> Item:
        if amount:
            return function_call("refund", "settle", order_id=order_id, amount=amount)
        return function_call("decline", "settle", order_id=order_id)


class NoisyPolicy(Noisy):
    """Refunds slightly too little, or pays when nothing is due, in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        call = items[0]
        if call.get("name") not in ("refund", "decline"):
            return items
        arguments = json.loads(call["arguments"])
        amount = round(arguments.get("amount", 11.0) - 1.0, 2)
        return [function_call("refund", call["call_id"], order_id=arguments["order_id"], amount=amount)]


def _email(conversation: list[Item]) -> str | None:
    messages = " ".join(text_of(item) for item in conversation if item.get("role") == "user")
    email = re.search(r"\S+@[\w.-]*\w", messages)
    return email[0] if email else None


def _order_id(orders: list[dict[str, str]], item: str) -> str:
    return next((order["order_id"] for order in orders if order["item"] == item), "")


def _reason(said: str) -> Reason:
    return next((reason for reason, trouble in TROUBLES.items() if trouble in said), "unwanted")


def _outcome(settled: dict[str, Any], item: str) -> str:
    paid = settled.get("paid", 0)
    return f"You get {paid:.2f} back for the {item}." if paid else f"I am sorry: nothing is paid back for the {item}."
