"""Policies for the counter."""

from __future__ import annotations

import json
import re

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, outputs_of


class ReferencePolicy(Policy):
    """Makes each addition of the prompt, reads the counter, and reports its value."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        additions = [int(number) for number in re.findall(r"add (-?\d+)", last_user_text(conversation), re.IGNORECASE)]
        results = outputs_of(conversation)
        if len(results) < len(additions):
            step = len(results)
            return [function_call("increment_counter", f"call_{step}", count=additions[step])]
        if len(results) == len(additions):
            return [function_call("get_counter_value", f"call_{len(results)}")]
        return [message(f"The counter is at {results[-1].get('count')}.")]


class NoisyPolicy(Noisy):
    """Adds one too much in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        if items[0].get("name") != "increment_counter" or items[0]["call_id"] != "call_0":  # once is enough
            return items
        count = json.loads(items[0]["arguments"])["count"]
        return [function_call("increment_counter", items[0]["call_id"], count=count + 1)]
