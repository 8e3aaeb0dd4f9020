"""The window: what a model is shown of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from stateroom.errors import BadData
from stateroom.model import Item


class Window:
    """The items that a model is shown, what each of them counts, and which of them are pinned.

    To add items costs what is added: the total is kept, not summed anew.
    """

    __slots__ = ("beside", "items", "pinned", "tokens", "total")

    def __init__(self, beside: int = 0) -> None:
        """`beside` is what the model is shown besides, such as the schemas of tools, in tokens."""
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

    def add(self, items: Sequence[Item], tokens: Sequence[int], pinned: Iterable[int] = ()) -> None:
        """Show more items, which count so many tokens each; `pinned` are places among these."""
        if len(items) != len(tokens):
            raise ValueError(f"{len(items)} items cannot count {len(tokens)} times")
        self.items.extend(items)
        self.tokens.extend(tokens)
        places = frozenset(pinned)
        self.pinned.extend([place in places for place in range(len(items))])
        self.total += sum(tokens)

    def only(self, kept: Sequence[bool]) -> Window:
        """A window with those of the items for which `kept` says so."""
        window = Window(self.beside)
        window.items = list(compress(self.items, kept))
        window.tokens = list(compress(self.tokens, kept))
        window.pinned = list(compress(self.pinned, kept))
        window.total += sum(window.tokens)
        return window

    def copy(self) -> Window:
        """A window of its own with the same items."""
        return self.only([True] * len(self))

    def put(self, place: int, item: Item, tokens: int) -> None:
        """Show another item in the place of one."""
        self.total += tokens - self.tokens[place]
        self.items[place], self.tokens[place] = item, tokens

    def insert(self, place: int, item: Item, tokens: int) -> None:
        """Show an item before the one in a place."""
        self.items.insert(place, item)
        self.tokens.insert(place, tokens)
        self.pinned.insert(place, False)
        self.total += tokens

    def plain(self) -> dict[str, Any]:
        """The items as JSON data, with what they count and the places of those that are pinned."""
        pinned = list(compress(range(len(self)), self.pinned))
        return {"items": [*self.items], "tokens": [*self.tokens], "pinned": pinned}

    @classmethod
    def of_plain(cls, data: Any, beside: int = 0) -> Window:
        """The window that such data stands for; `BadData` if it stands for none."""
        window = cls(beside)
        try:
            items, tokens, pinned = data["items"], data["tokens"], data["pinned"]
            if not (_are(items, dict) and _are(tokens, int) and _are(pinned, int)) or len(items) != len(tokens):
                raise ValueError("it takes a list of items, and what each of them counts")
            window.add(items, tokens, pinned)
        except (TypeError, KeyError, ValueError) as error:
            raise BadData(f"a stored window of a conversation cannot be read: {error!r}") from error
        return window


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
