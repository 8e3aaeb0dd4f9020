"""Check rows against an environment's tasks, measure them, and split them."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from random import Random
from typing import Any, NamedTuple

from stateroom.agent import TokenCounter, request_of, task_items
from stateroom.environment import Environment
from stateroom.errors import BadTask
from stateroom.model import Item, is_content, text_of
from stateroom.rollout import SourceRow, checked_row, has_prompt

MAX_VALUES = 100
"""The most distinct values that are counted per field; a field with more is described by its range."""

MAX_VALUE_CHARACTERS = 100
"""The longest text that is counted as a value, in characters."""


@dataclass
class DataReport:
    """The result of checking rows."""

    rows: int = 0
    problems: int = 0
    """The number of unusable rows."""
    first: list[str] = field(default_factory=list)
    """The first problems, each with its place."""
    without_prompt: int = 0
    """The number of usable rows without a prompt."""

    def add(self, problem: str, most: int) -> None:
        """Count a problem; the first `most` are kept."""
        self.problems += 1
        if self.problems <= most:
            self.first.append(problem)


def check_rows(rows: Iterable[SourceRow], environment: Environment[Any, Any], most: int = 10) -> DataReport:
    """Check rows against the environment's task type; the report has the first `most` problems."""
    report = DataReport()
    for each in rows:
        report.rows += 1
        try:
            row = checked_row(each.data, environment)
        except BadTask as error:
            report.add(f"{each.where}: {error}", most)
        else:
            report.without_prompt += not has_prompt(row)
    return report


class Lengths:
    """How often each length occurs."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, length: int) -> None:
        self._counts[length] += 1

    def __bool__(self) -> bool:
        return bool(self._counts)

    def figures(self) -> dict[str, float]:
        """The minimum, median, mean, 95th percentile and maximum."""
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
        """The quantile of the lengths for a share."""
        left = share * self._counts.total()
        for length in sorted(self._counts):
            left -= self._counts[length]
            if left <= 0:
                return length
        return max(self._counts)


@dataclass
class FieldStats:
    """Statistics of a field, in bounded memory: values are counted only while there are few."""

    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind occurs: `text`, `number`, `boolean`, `list`, `object` or `null`."""
    values: Counter[str] | None = field(default_factory=Counter)
    """How often each value occurs; None if values are many, long or nested."""
    least: float = inf
    """The smallest number, or the shortest length of a text or list."""
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
            if kind in ("list", "object") or (kind == "text" and len(value) > MAX_VALUE_CHARACTERS):
                self.values = None
                return
            self.values[value if kind == "text" else json.dumps(value)] += 1
            if len(self.values) > MAX_VALUES:
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
    """Statistics of rows."""

    rows: int = 0
    without_prompt: int = 0
    characters: Lengths = field(default_factory=Lengths)
    """Characters of the prompts: the instructions and all input messages."""
    tokens: Lengths = field(default_factory=Lengths)
    """Tokens of the prompts, if counted."""
    fields: dict[str, FieldStats] = field(default_factory=dict)


def measure_rows(rows: Iterable[SourceRow], counter: TokenCounter | None = None) -> DataStats:
    """Measure rows; a `counter` counts the tokens of their prompts. Raises `BadTask` for an unreadable row."""
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
    """The input messages of a row; in an unchecked row, anything that is not a message is skipped."""
    return [item for item in task_items(row) if is_content(item.get("content"))]


def _instructions(row: dict[str, Any]) -> list[Item]:
    """The instructions of a row as a message."""
    text = request_of(row).get("instructions")
    return [{"type": "message", "role": "system", "content": text}] if text and isinstance(text, str) else []


class Part(NamedTuple):
    """A part of a split and its relative size."""

    name: str
    ratio: float


def split_rows(rows: Iterable[SourceRow], parts: Sequence[Part], *, by: str | None = None, seed: int = 0) -> bytearray:
    """The part of each row, as an index into `parts`. The same seed gives the same split.

    Rows with the same value in the field `by` stay together. Groups are taken in random order, and each goes to the
    part that lacks the most rows. Memory: 9 bytes per row and a digest per group.
    """
    groups, sizes = _groups(rows, by)
    order = array("I", range(len(sizes)))
    Random(seed).shuffle(order)
    whole = sum(part.ratio for part in parts)
    missing = [part.ratio / whole * len(groups) for part in parts]
    part_of = bytearray(len(sizes))
    for group in order:
        part = max(range(len(parts)), key=missing.__getitem__)
        missing[part] -= sizes[group]
        part_of[group] = part
    return bytearray(part_of[group] for group in groups)


def _groups(rows: Iterable[SourceRow], by: str | None) -> tuple[array[int], array[int]]:
    """The group of each row, and the size of each group; without a field, each row is a group."""
    groups, sizes = array("I"), array("I")
    known: dict[bytes, int] = {}
    for each in rows:
        group = len(sizes) if by is None else known.setdefault(_digest(each, by), len(sizes))
        if group == len(sizes):
            sizes.append(0)
        sizes[group] += 1
        groups.append(group)
    return groups, sizes


def _digest(each: SourceRow, by: str) -> bytes:
    row = each.row()
    if by not in row:
        raise BadTask(f"{each.where}: the row has no field {by!r} to group by; available: {', '.join(row) or 'none'}")
    return blake2b(json.dumps(row[by], sort_keys=True).encode(), digest_size=16).digest()
