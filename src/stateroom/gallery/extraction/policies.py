"""Policies for the extraction of values."""

from __future__ import annotations

import json
import re

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

LISTED = re.compile(r"one at a time: (.+?)\.|the synonyms \[(.+?)\]")
"""The words in a prompt that lists them."""

SYNONYM = re.compile(r"The term '(.+?)' has a synonym '(.+?)'\.")
"""A synonym in a question of NeMo Gym, which lists synonyms of several terms."""

HINTS = {"heat": "Hot", "temperature": "Hot"}
"""Terms that a question describes without naming them."""


def words_of(conversation: list[Item]) -> list[str]:
    """The words to look up: those listed in the prompt, or the synonyms of the term in a question."""
    prompt = last_user_text(conversation)
    if listed := LISTED.search(prompt):
        return [word.strip(" '\"") for word in (listed[1] or listed[2]).split(",")]
    known = [pair for item in conversation for pair in SYNONYM.findall(text_of(item))]
    hinted = [term for hint, term in HINTS.items() if hint in prompt.lower()]
    asked = set(re.findall(r"\w+", prompt.lower()))
    named = [term for term, word in known if {term.lower(), word.lower()} & asked]
    return [word for term, word in known if term in [*hinted, *named][:1]]


class ReferencePolicy(Policy):
    """Looks up each word of the prompt, then submits the values."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        words, results = words_of(conversation), outputs_of(newest_turn(conversation))
        step, call_id = len(results), f"call_{len(outputs_of(conversation))}"
        if step < len(words):
            return [function_call("get_synonym_value", call_id, synonym=words[step])]
        if step == len(words):
            values = [result.get("synonym_value") for result in results]
            return [function_call("extract_synonym_values", call_id, synonym_values=values)]
        return [message("I have handed in the values.")]


class NoisyPolicy(Noisy):
    """Submits the values in another order, or one too few, in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        if items[0].get("name") != "extract_synonym_values":
            return items
        values = json.loads(items[0]["arguments"])["synonym_values"]
        wrong = values[::-1] if self.rng.random() < 0.5 and values != values[::-1] else values[:-1]
        return [function_call("extract_synonym_values", items[0]["call_id"], synonym_values=wrong)]
