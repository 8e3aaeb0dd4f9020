"""Who acts in the episodes of a check, beside the environment's reference policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import NotFound
from stateroom.model import Item, Model, Policy, function_call, message, open_model, outputs_of, text_of
from stateroom.rollout.checking.guessing import Guess, seen_in, words_of
from stateroom.rollout.world import Row

REFERENCE = "reference"
"""The name of the policy that solves every task."""

ROUNDS = 3
"""How often a wanderer calls each tool."""

MOST_CALLS = 40
"""How many calls it makes at most."""

RECENT = 20
"""Of so many items it remembers what came back."""


PATIENCE = 10
"""How often one may answer who does nothing."""


@dataclass(frozen=True)
class Actor:
    """Who acts in an episode."""

    name: str
    make: Callable[[int, Row], Model]
    """Gives the model, by the seed of its chance and the task's row."""
    max_steps: int | None = None
    reaches_outside: bool = True
    """Whether it may call tools that reach outside."""


def reference(environment: type[Environment[Any, Any]]) -> Actor | None:
    """The environment's own reference policy, if it has one."""
    if REFERENCE not in environment.policies:
        return None
    try:
        source = open_model(REFERENCE, environment.policies)
    except NotFound:
        return None  # which is a fault of the schema
    return Actor(REFERENCE, lambda seed, row: source.for_episode(seed))


def wanderer() -> Actor:
    """One that calls tools by chance. What reaches outside it leaves alone: nobody has asked for that."""
    return Actor("wanderer", Wanderer, MOST_CALLS + PATIENCE, reaches_outside=False)


def idler() -> Actor:
    """One that does nothing."""
    return Actor("idle", lambda seed, row: Idle(seed), PATIENCE)


class Idle(Policy):
    """Does nothing, and says so."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message("I have done nothing.")]


class Wanderer(Policy):
    """Calls one tool after another with arguments made up by chance, of what it has seen, and of what its task says."""

    def __init__(self, seed: int, row: Row) -> None:
        super().__init__(seed)
        self._task = [*seen_in({name: value for name, value in row.items() if name != "responses_create_params"})]

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        step = sum(item.get("type") == "function_call" for item in conversation)
        if step >= min(ROUNDS * len(tools), MOST_CALLS):
            return [message("I have called every tool.")]
        tool = tools[step % len(tools)]
        said = (text_of(item) for item in conversation if item.get("type", "message") == "message")
        words = (word for text in said for word in words_of(text))
        seen = [*self._task, *words, *seen_in(outputs_of(conversation[-RECENT:]))]
        parameters = tool["parameters"]
        arguments = Guess(self.rng, seen).value(parameters, parameters.get("$defs", {}))
        return [{**function_call(tool["name"], f"call_{step}"), "arguments": json.dumps(arguments)}]
