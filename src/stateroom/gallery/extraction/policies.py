"""Policies for the extraction of values."""

from __future__ import annotations

import json
import re

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, outputs_of


class ReferencePolicy(Policy):
    """Looks up each word of the prompt, then hands in the values."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        listed = re.search(r"one at a time: (.+?)\.", last_user_text(conversation))
        words = listed[1].split(", ") if listed else []
        results = outputs_of(conversation)
        step = len(results)
        if step < len(words):
            return [function_call("get_synonym_value", f"call_{step}", synonym=words[step])]
        if step == len(words):
            values = [result.get("synonym_value") for result in results]
            return [function_call("extract_synonym_values", f"call_{step}", synonym_values=values)]
        return [message("I have handed in the values.")]


class NoisyPolicy(Noisy):
    """Hands in the values in another order, or one too few, in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        if items[0].get("name") != "extract_synonym_values":
            return items
        values = json.loads(items[0]["arguments"])["synonym_values"]
        wrong = values[::-1] if self.rng.random() < 0.5 and values != values[::-1] else values[:-1]
        return [function_call("extract_synonym_values", items[0]["call_id"], synonym_values=wrong)]
