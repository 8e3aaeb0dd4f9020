"""`Window`: the part of a conversation that a model sees, and the units that it consists of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from math import inf
from typing import Any, NamedTuple

from stateroom.errors import BadData
from stateroom.model import Item, kind_of

INSTRUCTIONS = frozenset({"system", "developer"})
"""The kinds of messages that a model always sees."""

ANSWERS = frozenset({"assistant", "call", "reasoning"})
"""The kinds of items that a model makes."""


class Size(NamedTuple):
    """The size of a part of a conversation, or a bound on it. Each item is a message."""

    tokens: float
    messages: float = inf

    def within(self, bound: Size) -> bool:
        """Whether neither exceeds a bound."""
        return self.tokens <= bound.tokens and self.messages <= bound.messages

    def __sub__(self, other: Size) -> Size:
        return Size(self.tokens - other.tokens, self.messages - other.messages)


class Unit(NamedTuple):
    """Items that stay together: a message, or calls with their results, and the reasoning before them."""

    start: int
    stop: int
    said: bool
    """Whether it contains more than system and developer messages, which always stay."""
    pinned: bool
    """Whether a pinned item keeps all of it."""
    asks: bool
    """Whether it contains a user message, with which a turn begins."""
    size: Size
    """The size that dropping it frees."""

    @property
    def loose(self) -> bool:
        """Whether it may be dropped."""
        return self.said and not self.pinned


class Window:
    """The items that a model sees, the tokens of each, and which of them are pinned.

    Adding items costs O(what is added): the window keeps its total.
    """

    __slots__ = ("beside", "items", "pinned", "tokens", "total")

    def __init__(self, beside: int = 0) -> None:
        """`beside` is the tokens of the rest of a request, such as the schemas of tools."""
        self.items: list[Item] = []
        self.tokens: list[int] = []
        self.pinned: list[bool] = []
        self.beside = beside
        self.total = beside

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Window):
            return NotImplemented
        return (self.items, self.tokens, self.pinned, self.beside) == (
            *(other.items, other.tokens, other.pinned, other.beside),
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Window of {len(self)} items, {self.total} tokens>"

    @property
    def size(self) -> Size:
        """The size of the request."""
        return Size(self.total, len(self))

    def add(self, items: Sequence[Item], tokens: Sequence[int], pinned: Iterable[int] = ()) -> None:
        """Add items with their token counts; `pinned` are indexes into these items."""
        if len(items) != len(tokens):
            raise ValueError(f"{len(items)} items need {len(items)} token counts, not {len(tokens)}")
        self.items.extend(items)
        self.tokens.extend(tokens)
        places = frozenset(pinned)
        self.pinned.extend([place in places for place in range(len(items))])
        self.total += sum(tokens)

    def only(self, kept: Sequence[bool]) -> Window:
        """A window with the items for which `kept` is true."""
        window = Window(self.beside)
        window.items = list(compress(self.items, kept))
        window.tokens = list(compress(self.tokens, kept))
        window.pinned = list(compress(self.pinned, kept))
        window.total += sum(window.tokens)
        return window

    def copy(self) -> Window:
        """A new window with the same items."""
        return self.only([True] * len(self))

    def replace_item(self, place: int, item: Item, tokens: int) -> None:
        """Replace an item."""
        self.total += tokens - self.tokens[place]
        self.items[place], self.tokens[place] = item, tokens

    def insert(self, place: int, item: Item, tokens: int) -> None:
        """Insert an item."""
        self.items.insert(place, item)
        self.tokens.insert(place, tokens)
        self.pinned.insert(place, False)
        self.total += tokens

    def set_beside(self, tokens: int) -> None:
        """Change the tokens of the rest of a request."""
        self.total += tokens - self.beside
        self.beside = tokens

    def plain(self) -> dict[str, Any]:
        """The window as JSON data: items, token counts, and the indexes of pinned items."""
        pinned = list(compress(range(len(self)), self.pinned))
        return {"items": [*self.items], "tokens": [*self.tokens], "pinned": pinned}

    @classmethod
    def of_plain(cls, data: Any, beside: int = 0) -> Window:
        """Read a window from such data. Raises `BadData`."""
        window = cls(beside)
        try:
            items, tokens, pinned = data["items"], data["tokens"], data["pinned"]
            if not (_are(items, dict) and _are(tokens, int) and _are(pinned, int)) or len(items) != len(tokens):
                raise ValueError("a window needs a list of items and a token count for each")
            window.add(items, tokens, pinned)
        except (TypeError, KeyError, ValueError) as error:
            raise BadData(f"cannot read a stored window of a conversation: {error!r}") from error
        return window


def units_of(window: Window) -> list[Unit]:
    """The units of a window, in order."""
    kinds = [kind_of(item) for item in window.items]
    units = []
    start = 0
    for stop in _ends(window.items, kinds):
        units.append(_unit(window, kinds, start, stop))
        start = stop
    return units


def newest_question(units: Sequence[Unit]) -> Unit | None:
    """The unit with the newest user message."""
    return next((unit for unit in reversed(units) if unit.asks), None)


def droppable(units: Sequence[Unit]) -> list[Unit]:
    """The units that may be dropped, except the newest of all, which the model has not answered yet."""
    spoken = [unit for unit in units if unit.said]
    return [unit for unit in spoken[:-1] if unit.loose]


def without(window: Window, units: Iterable[Unit]) -> Window:
    """A window without some units; their system and developer messages stay."""
    kept = [True] * len(window)
    for unit in units:
        for place in range(unit.start, unit.stop):
            kept[place] = kind_of(window.items[place]) in INSTRUCTIONS
    return window.only(kept)


def _unit(window: Window, kinds: Sequence[str], start: int, stop: int) -> Unit:
    places = [place for place in range(start, stop) if kinds[place] not in INSTRUCTIONS]
    pinned = any(window.pinned[place] for place in places)
    asks = any(kinds[place] == "user" for place in places)
    size = Size(0, 0) if pinned else Size(sum(window.tokens[place] for place in places), len(places))
    return Unit(start, stop, bool(places), pinned, asks, size)


def _ends(items: Sequence[Item], kinds: Sequence[str]) -> list[int]:
    """The ends of the units. A call without a result belongs together with all that follows, up to a user message."""
    calls = calls_of_outputs(items, kinds)
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
        elif kind not in INSTRUCTIONS:
            thinking = kind == "reasoning"
        if not (open_calls or unanswered or thinking):
            ends.append(place + 1)
    if items and (not ends or ends[-1] < len(items)):
        ends.append(len(items))
    return ends


def calls_of_outputs(items: Sequence[Item], kinds: Sequence[str]) -> dict[int, int]:
    """The index of the call of each result. Models repeat their ids, so the newest open call counts."""
    waiting: dict[str, list[int]] = {}
    calls: dict[int, int] = {}
    for place, kind in enumerate(kinds):
        if kind == "call":
            waiting.setdefault(str(items[place].get("call_id")), []).append(place)
        elif kind == "output" and (open_calls := waiting.get(str(items[place].get("call_id")))):
            calls[place] = open_calls.pop()
    return calls


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
