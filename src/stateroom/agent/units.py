"""Units: the items of a conversation that are only shown together, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stateroom.agent.window import Window
from stateroom.model import Item

TOLD = frozenset({"system", "developer"})
"""The kinds of messages that are always shown: they tell the model what to be."""

ANSWERS = frozenset({"assistant", "call", "reasoning"})
"""The kinds of items that a model makes."""


class Unit(NamedTuple):
    """Items that follow one another: a message; or calls and their results; with the reasoning before."""

    start: int
    stop: int
    said: bool
    """Whether there is more in it than system and developer messages, which stay wherever they are."""
    pinned: bool
    """Whether it must stay as a whole, for the sake of what is pinned in it."""
    asks: bool
    """Whether the user says something in it: a turn begins."""
    tokens: int
    """What it would free if it went."""

    @property
    def loose(self) -> bool:
        """Whether it may go."""
        return self.said and not self.pinned


def kind_of(item: Item) -> str:
    """What an item is: `call` or `output`; else the role that says it, or its type."""
    kind = str(item.get("type"))
    if "call_id" in item or kind.startswith("function_call"):
        return "output" if kind.endswith("_output") else "call"
    role = item.get("role")
    return role if isinstance(role, str) else kind


def is_call(item: Item) -> bool:
    """Whether a result belongs to the item."""
    return kind_of(item) == "call"


def is_output(item: Item) -> bool:
    """Whether the item is the result of a call."""
    return kind_of(item) == "output"


def asks(item: Item) -> bool:
    """Whether a turn begins with the item."""
    return kind_of(item) == "user"


def units_of(window: Window) -> list[Unit]:
    """All that is in a window, in order."""
    kinds = [kind_of(item) for item in window.items]
    units = []
    start = 0
    for stop in _ends(window.items, kinds):
        units.append(_unit(window, kinds, start, stop))
        start = stop
    return units


def newest_question(units: Sequence[Unit]) -> Unit | None:
    """The unit in which the user spoke last."""
    return next((unit for unit in reversed(units) if unit.asks), None)


def older(units: Sequence[Unit]) -> list[Unit]:
    """Those that may go, but for the newest of all: the model has not answered it yet."""
    said = [unit for unit in units if unit.said]
    return [unit for unit in said[:-1] if unit.loose]


def without(window: Window, units: Iterable[Unit]) -> Window:
    """The window less what may go of some units."""
    kept = [True] * len(window)
    for unit in units:
        for place in range(unit.start, unit.stop):
            kept[place] = kind_of(window.items[place]) in TOLD
    return window.only(kept)


def _unit(window: Window, kinds: Sequence[str], start: int, stop: int) -> Unit:
    said = pinned = asks = False
    tokens = 0
    for place in range(start, stop):
        kind = kinds[place]
        if kind not in TOLD:
            said = True
            pinned |= window.pinned[place]
            asks |= kind == "user"
            tokens += window.tokens[place]
    return Unit(start, stop, said, pinned, asks, 0 if pinned else tokens)


def _ends(items: Sequence[Item], kinds: Sequence[str]) -> list[int]:
    """Where units end. Calls that have no result yet are one with all that follows, until the user speaks."""
    calls = _calls_of_outputs(items, kinds)
    answered = set(calls.values())
    ends: list[int] = []
    open_calls = 0
    unanswered = thinking = False
    for place, kind in enumerate(kinds):
        if kind == "user":
            if (unanswered or thinking) and not open_calls:
                ends.append(place)
            unanswered = thinking = False
        elif kind == "call":
            thinking = False
            if place in answered:
                open_calls += 1
            else:
                unanswered = True
        elif place in calls:
            open_calls -= 1
        elif kind not in TOLD:
            thinking = kind == "reasoning"
        if not (open_calls or unanswered or thinking):
            ends.append(place + 1)
    if items and (not ends or ends[-1] < len(items)):
        ends.append(len(items))
    return ends


def _calls_of_outputs(items: Sequence[Item], kinds: Sequence[str]) -> dict[int, int]:
    """The place of the call for the place of each result. Models repeat their ids: the newest open call is meant."""
    waiting: dict[str, list[int]] = {}
    found: dict[int, int] = {}
    for place, kind in enumerate(kinds):
        if kind == "call":
            waiting.setdefault(str(items[place].get("call_id")), []).append(place)
        elif kind == "output" and (open_calls := waiting.get(str(items[place].get("call_id")))):
            found[place] = open_calls.pop()
    return found
