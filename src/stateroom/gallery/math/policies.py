"""Policies for the ledger."""

from __future__ import annotations

import json
from typing import Any

from stateroom.gallery.math.problem import read
from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, newest_turn, outputs_of


class ReferencePolicy(Policy):
    """Computes each result as soon as possible, then submits the last one."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        results = outputs_of(newest_turn(conversation))
        call_id = f"call_{len(outputs_of(conversation))}"
        if results and "success" in results[-1]:
            return [message("I have submitted the answer.")]
        values: dict[str, int] = {}
        for result in results:
            values |= result
        left = [step for step in read(last_user_text(conversation)) if step.result not in values]
        waiting = {step.result for step in left}
        for step in left:
            if not step.needs(values) & waiting:
                formula = step.chosen(values).model_dump()
                return [function_call("compute", call_id, result=step.result, **formula)]
        return [function_call("submit_answer", call_id, answer=next(reversed(values.values()), 0))]


class NoisyPolicy(Noisy):
    """Adds instead of multiplying in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        arguments: dict[str, Any] = json.loads(items[0].get("arguments", "{}"))
        if arguments.get("operation") != "multiply":
            return items
        return [function_call("compute", items[0]["call_id"], **arguments | {"operation": "add"})]
