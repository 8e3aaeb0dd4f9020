"""Policies for the counter."""

from __future__ import annotations

import json
import re

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, newest_turn, outputs_of

ADDITION = re.compile(r"\b(?:add|by) (-?\d+)", re.IGNORECASE)
"""One addition in a prompt: "add 2", or "increment the counter by 2"."""


class ReferencePolicy(Policy):
    """Makes each addition of the prompt, reads the counter, and reports its value."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        additions = [int(number) for number in ADDITION.findall(last_user_text(conversation))]
        results = outputs_of(newest_turn(conversation))
        step, call_id = len(results), f"call_{len(outputs_of(conversation))}"
        if step < len(additions):
            return [function_call("increment_counter", call_id, count=additions[step])]
        if step == len(additions):
            return [function_call("get_counter_value", call_id)]
        return [message(f"The counter is at {results[-1].get('count')}.")]


class NoisyPolicy(Noisy):
    """Adds one too much in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        if items[0].get("name") != "increment_counter" or items[0]["call_id"] != "call_0":  # once is enough
            return items
        count = json.loads(items[0]["arguments"])["count"]
        return [function_call("increment_counter", items[0]["call_id"], count=count + 1)]
