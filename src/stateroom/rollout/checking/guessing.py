"""Arguments that a tool's schema allows, made up by chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

NUMBERS = (0, 1, 2, 3, 7, 20, 100)
WORDS = ("a", "tea", "two words", "")
FORMATS = {"date-time": "2025-01-15T09:30:00Z", "date": "2025-01-15", "time": "09:30:00"}

OFTEN = 0.8
"""How often a value is one that was seen, if one of that kind was."""


class Seen(NamedTuple):
    """A text or a number that was seen, and by what name."""

    name: str
    value: Any

    def is_meant_by(self, parameter: str) -> bool:
        """Whether a parameter may be asking for such a value: an `id` of a file for `file_id`, say."""
        return bool(self.name) and (parameter.endswith(self.name) or self.name.endswith(parameter))


def seen_in(value: Any, name: str = "") -> Iterator[Seen]:
    """The texts and numbers anywhere in JSON data; keys too, which may be ids."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield Seen(name, key)
            yield from seen_in(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from seen_in(part, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield Seen(name, value)


def words_of(text: str) -> Iterator[Seen]:
    """The words of a text, which may be names of things."""
    yield from (Seen("", word) for word in re.findall(r"[\w@.-]*\w", text))


class Guess:
    """Makes up values by schema; `seen` are such as may mean something to the environment."""

    def __init__(self, rng: Random, seen: Sequence[Seen]) -> None:
        self._rng = rng
        self._seen = seen

    def value(self, schema: Mapping[str, Any], definitions: Mapping[str, Any], name: str = "") -> Any:
        """A value that a schema allows, as far as it is understood, for a parameter of a name."""
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

    def _one_of(self, seen: Sequence[Seen], name: str, others: Sequence[Any]) -> Any:
        if not seen or self._rng.random() > OFTEN:
            return self._rng.choice(others)
        meant = [each for each in seen if each.is_meant_by(name)]
        return self._rng.choice(meant or seen).value
