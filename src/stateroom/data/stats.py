"""Statistics of rows: how many there are, how long their prompts are, and what their fields hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from stateroom.agent import TokenCounter
from stateroom.model import Item, input_items, is_content, text_of
from stateroom.rollout import SourceRow

MOST_VALUES = 100
"""Different values of a field that are counted; one that has more is described by its range."""

LONGEST_VALUE = 100
"""Characters of a text that counts as a value."""


class Lengths:
    """How often each length occurs."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, length: int) -> None:
        self._counts[length] += 1

    def __bool__(self) -> bool:
        return bool(self._counts)

    def figures(self) -> dict[str, float]:
        """The least, the median, the mean, the 95th percentile and the most."""
        total = self._counts.total()
        mean = sum(length * count for length, count in self._counts.items()) / total
        return {
            "min": min(self._counts),
            "median": self._at(0.5),
            "mean": mean,
            "p95": self._at(0.95),
            "max": max(self._counts),
        }

    def _at(self, share: float) -> int:
        """The least length that this share of all reaches at most."""
        left = share * self._counts.total()
        for length in sorted(self._counts):
            left -= self._counts[length]
            if left <= 0:
                return length
        return max(self._counts)


@dataclass
class FieldStats:
    """What a field holds. Memory is bounded: values are counted only while there are few."""

    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How often it holds a `text`, `number`, `boolean`, `list`, `object` or `null`."""
    values: Counter[str] | None = field(default_factory=Counter)
    """How often it holds each value; None if there are many, long or composed ones."""
    least: float = inf
    """The least number, or length of a text or list."""
    most: float = -inf

    def add(self, value: Any) -> None:
        """Count the value of one more row."""
        kind = _kind(value)
        self.rows += 1
        self.kinds[kind] += 1
        if kind in ("number", "text", "list"):
            size = value if kind == "number" else len(value)
            self.least, self.most = min(self.least, size), max(self.most, size)
        if self.values is not None:
            if kind in ("list", "object") or (kind == "text" and len(value) > LONGEST_VALUE):
                self.values = None
                return
            self.values[value if kind == "text" else json.dumps(value)] += 1
            if len(self.values) > MOST_VALUES:
                self.values = None


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case dict():
            return "object"
    return "null"


@dataclass
class DataStats:
    """What is known of some rows."""

    rows: int = 0
    without_prompt: int = 0
    characters: Lengths = field(default_factory=Lengths)
    """Characters of the prompts: of the instructions and all messages that the model is given."""
    tokens: Lengths = field(default_factory=Lengths)
    """Tokens of the prompts, if they are counted."""
    fields: dict[str, FieldStats] = field(default_factory=dict)


def measure_rows(rows: Iterable[SourceRow], counter: TokenCounter | None = None) -> DataStats:
    """Measure rows one by one; a `counter` counts the tokens of their prompts. `BadTask` if one cannot be read."""
    stats = DataStats()
    for each in rows:
        row = each.row()
        stats.rows += 1
        for name, value in row.items():
            if name != "responses_create_params":
                stats.fields.setdefault(name, FieldStats()).add(value)
        asked, instructions = _prompt(row), _instructions(row)
        if any(map(text_of, asked)):
            items = [*instructions, *asked]
            stats.characters.add(sum(len(text_of(item)) for item in items))
            if counter is not None:
                stats.tokens.add(sum(map(counter.count, items)))
        else:
            stats.without_prompt += 1
    return stats


def _prompt(row: dict[str, Any]) -> list[Item]:
    """The messages that the model is given; what is no message in a row that was never checked is left out."""
    request = row.get("responses_create_params")
    given = request.get("input") if isinstance(request, dict) else None
    items = input_items(given) if isinstance(given, str | list) else []
    return [item for item in items if isinstance(item, dict) and is_content(item.get("content"))]


def _instructions(row: dict[str, Any]) -> list[Item]:
    """What the model is told before its messages, as one."""
    request = row.get("responses_create_params")
    told = request.get("instructions") if isinstance(request, dict) else None
    return [{"type": "message", "role": "system", "content": told}] if told and isinstance(told, str) else []
