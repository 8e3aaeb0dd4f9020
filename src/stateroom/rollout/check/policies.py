"""The policies of the checks: the environment's reference, a random, an idle and a shortcut policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from stateroom.environment import Environment
from stateroom.errors import InvalidModel, NotFound
from stateroom.model import (
    Gold,
    Item,
    Model,
    Policy,
    default_model,
    function_call,
    message,
    open_model,
    outputs_of,
    text_of,
)
from stateroom.rollout.rows import Row

CALLS_PER_TOOL = 3
"""How often the random policy calls each tool."""

MAX_CALLS = 40
"""The most calls that it makes."""

RECENT_ITEMS = 20
"""The number of latest items whose outputs it draws values from."""

MAX_IDLE_ANSWERS = 10
"""The most answers of a policy without calls."""

NUMBERS = (0, 1, 2, 3, 7, 20, 100)
WORDS = ("a", "tea", "two words", "")
FORMATS = {"date-time": "2025-01-15T09:30:00Z", "date": "2025-01-15", "time": "09:30:00"}

SEEN_SHARE = 0.8
"""The share of random values that are drawn from values seen before, if any fit."""


@dataclass(frozen=True)
class CheckPolicy:
    """A policy that plays the episodes of a check."""

    name: str
    make: Callable[[int, Row], Model]
    """Creates the model from a random seed and the task's row."""
    max_steps: int | None = None
    calls_external: bool = True
    """Whether it may call external tools."""


def reference_policy(environment: type[Environment[Any, Any]], rows: Iterable[Row]) -> CheckPolicy | None:
    """The reference policy or, without one, the gold actions of the tasks, if all have them."""
    name = default_model(environment.policies, rows)
    if name is None:
        return None
    try:
        source = open_model(name, environment.policies)
    except (NotFound, InvalidModel):
        return None  # the check `schema` reports it
    return CheckPolicy(name, source.for_episode)


def random_policy() -> CheckPolicy:
    """Calls all tools with random arguments, except external ones."""
    return CheckPolicy("random", RandomPolicy, MAX_CALLS + MAX_IDLE_ANSWERS, calls_external=False)


def idle_policy() -> CheckPolicy:
    """Does nothing."""
    return CheckPolicy("idle", lambda seed, row: Idle(seed), MAX_IDLE_ANSWERS)


def shortcut_policy(actions: list[dict[str, Any]]) -> CheckPolicy:
    """Repeats some of the steps of another episode, without an answer."""
    return CheckPolicy("shortcut", lambda seed, row: Gold({"gold": actions}), len(actions) + MAX_IDLE_ANSWERS)


class Idle(Policy):
    """Says that it does nothing."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message("I have done nothing.")]


class RandomPolicy(Policy):
    """Calls one tool after another with random arguments, drawn from earlier outputs and the task."""

    def __init__(self, seed: int, row: Row) -> None:
        super().__init__(seed)
        self._task = [*seen_in({name: value for name, value in row.items() if name != "responses_create_params"})]

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        step = sum(item.get("type") == "function_call" for item in conversation)
        if step >= min(CALLS_PER_TOOL * len(tools), MAX_CALLS):
            return [message("I have called every tool.")]
        tool = tools[step % len(tools)]
        texts = (text_of(item) for item in conversation if item.get("type", "message") == "message")
        words = (word for text in texts for word in words_of(text))
        seen = [*self._task, *words, *seen_in(outputs_of(conversation[-RECENT_ITEMS:]))]
        parameters = tool["parameters"]
        arguments = RandomValue(self.rng, seen).value(parameters, parameters.get("$defs", {}))
        return [{**function_call(tool["name"], f"call_{step}"), "arguments": json.dumps(arguments)}]


class SeenValue(NamedTuple):
    """A text or number from an output or the task, and its name."""

    name: str
    value: Any

    def fits(self, parameter: str) -> bool:
        """Whether the value may fit a parameter, such as the `id` of a file for `file_id`."""
        return bool(self.name) and (parameter.endswith(self.name) or self.name.endswith(parameter))


def seen_in(value: Any, name: str = "") -> Iterator[SeenValue]:
    """The texts and numbers in JSON data, and its keys, which may be ids."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield SeenValue(name, key)
            yield from seen_in(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from seen_in(part, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield SeenValue(name, value)


def words_of(text: str) -> Iterator[SeenValue]:
    """The words of a text, which may be names."""
    yield from (SeenValue("", word) for word in re.findall(r"[\w@.-]*\w", text))


class RandomValue:
    """Creates random values for JSON schemas, preferring `seen` values, which may be valid in the environment."""

    def __init__(self, rng: Random, seen: Sequence[SeenValue]) -> None:
        self._rng = rng
        self._seen = seen

    def value(self, schema: Mapping[str, Any], definitions: Mapping[str, Any], name: str = "") -> Any:
        """A value for a schema, as far as the schema is supported; `name` is that of the parameter."""
        if "$ref" in schema:
            return self.value(definitions[schema["$ref"].rpartition("/")[2]], definitions, name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self.value(self._rng.choice(choices), definitions, name)
        match schema.get("type"):
            case "object":
                parts = schema.get("properties", {})
                return {each: self.value(part, definitions, each) for each, part in parts.items()}
            case "array":
                least = schema.get("minItems", 0)
                number = self._rng.randint(least, min(schema.get("maxItems", least + 3), least + 3))
                return [self.value(schema.get("items", {}), definitions, name.removesuffix("s")) for _ in range(number)]
            case "integer" | "number" as kind:
                return self._number(schema, name, whole=kind == "integer")
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        return self._one_of([each for each in self._seen if isinstance(each.value, str)], name, WORDS)

    def _number(self, schema: Mapping[str, Any], name: str, whole: bool) -> float:
        numbers = [each for each in self._seen if not isinstance(each.value, str)]
        value = self._one_of([each for each in numbers if not whole or each.value == int(each.value)], name, NUMBERS)
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", value - 1) + 1)
        highest = schema.get("maximum", schema.get("exclusiveMaximum", value + 1) - 1)
        bounded = max(lowest, min(value, highest))
        return int(bounded) if whole else bounded

    def _one_of(self, seen: Sequence[SeenValue], name: str, others: Sequence[Any]) -> Any:
        if not seen or self._rng.random() > SEEN_SHARE:
            return self._rng.choice(others)
        fitting = [each for each in seen if each.fits(name)]
        return self._rng.choice(fitting or seen).value
