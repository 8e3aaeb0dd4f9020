"""Strategies: the ways in which a window is made smaller, each a pure function of what it is given."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stateroom.agent.tokens import Counter
from stateroom.agent.units import ANSWERS, Unit, kind_of, newest_question, older, units_of, without
from stateroom.agent.window import Window
from stateroom.errors import DefinitionError


class Bounds(NamedTuple):
    """How small a window is to be, in tokens as they are counted."""

    target: int
    """What it is to have at most, if that can be."""
    budget: int
    """What it may have at most."""
    counter: Counter
    """For items that a strategy makes itself."""


class Strategy(Protocol):
    """Makes a window smaller. May be async.

    It takes from units as a whole (`units_of`), or changes what is in an item, and leaves pinned items, and system and
    developer messages, as they are. If it can do nothing, it gives back what it got; it never changes that.
    """

    def apply(self, window: Window, bounds: Bounds) -> Window | Awaitable[Window]:
        """A window with fewer tokens, down to the target if that can be."""


CLEARED = "[an old result, no longer shown]"

_CLEARABLE = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True)
class ClearToolResults:
    """Puts a placeholder for what old tool calls came to, oldest first; the calls stay.

    The newest `keep` results are not touched, nor are those that the model has not seen yet.
    """

    keep: int = 3
    placeholder: str = CLEARED

    def __post_init__(self) -> None:
        _refuse_less(self.keep, 0, "ClearToolResults keeps")

    def apply(self, window: Window, bounds: Bounds) -> Window:
        shorter = window.copy()
        for place in self._old(window):
            if shorter.total <= bounds.target:
                break
            cleared = {**window.items[place], "output": self.placeholder}
            tokens = bounds.counter.count(cleared)
            if tokens < window.tokens[place]:
                shorter.put(place, cleared, tokens)
        return shorter

    def _old(self, window: Window) -> list[int]:
        """The places of the results that may be cleared."""
        items = window.items
        results = [place for place, item in enumerate(items) if item.get("type") in _CLEARABLE]
        seen = next((place for place in range(len(items) - 1, -1, -1) if kind_of(items[place]) in ANSWERS), 0)
        return [
            place
            for place in results[: max(len(results) - self.keep, 0)]
            if place < seen and not window.pinned[place] and items[place].get("output") != self.placeholder
        ]


@dataclass(frozen=True)
class KeepLastTurns:
    """Drops all but the last `n` turns. A turn begins with a message of the user's."""

    n: int

    def __post_init__(self) -> None:
        _refuse_less(self.n, 1, "KeepLastTurns keeps")

    def apply(self, window: Window, bounds: Bounds) -> Window:
        units = units_of(window)
        turns = [place for place, unit in enumerate(units) if unit.asks]
        if len(turns) <= self.n:
            return window
        return without(window, [unit for unit in units[: turns[-self.n]] if unit.loose])


@dataclass(frozen=True)
class DropOldest:
    """Drops what is oldest, until the rest is small enough.

    What the user said last goes only if there is no other way, and the newest unit never.
    """

    def apply(self, window: Window, bounds: Bounds) -> Window:
        units = units_of(window)
        question = newest_question(units)
        dropped: list[Unit] = []
        left = window.total
        for unit in older(units):
            if left <= bounds.target:
                break
            if unit is not question:
                dropped.append(unit)
                left -= unit.tokens
        if left > bounds.budget:
            dropped += [unit for unit in older(units) if unit is question]
        return without(window, dropped)


def _refuse_less(given: int, least: int, what: str) -> None:
    if given < least:
        raise DefinitionError(f"{what} a number from {least} on, not {given}")
