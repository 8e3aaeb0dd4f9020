"""`Conversation`: what was said, as a field of an author's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt

from stateroom.agent.context import NOT_ANCHORED, Anchor, Context
from stateroom.agent.tokens import Estimate, TokenCounter
from stateroom.agent.window import Window
from stateroom.model import Item, kind_of
from stateroom.state import detach

ESTIMATE = Estimate()


class CountedItem(BaseModel):
    """An item of a conversation, and its tokens."""

    model_config = ConfigDict(extra="forbid")

    item: dict[str, JsonValue]
    tokens: NonNegativeInt
    pinned: bool = False
    """Whether a model always sees it."""


class Conversation(BaseModel):
    """What was said, with the tokens of each item; a field of this type can be in any `State`.

    It keeps all items. A model sees a bounded view of them, which costs O(its size) if it starts from the view before:
    see `compact`.
    """

    model_config = ConfigDict(extra="forbid")

    said: list[CountedItem] = []
    """All items, in order; `add` adds to them."""
    shown: list[CountedItem] = []
    """What a model sees in place of the first `since` items."""
    since: NonNegativeInt = 0

    def add(self, given: Item | Sequence[Item], *, counter: TokenCounter = ESTIMATE, pinned: bool = False) -> None:
        """Add an item, or several."""
        items = [given] if isinstance(given, dict) else given
        self.said.extend(CountedItem(item=item, tokens=counter.count(item), pinned=pinned) for item in items)

    @property
    def items(self) -> list[Item]:
        """All items."""
        return _items(self.said)

    @property
    def total(self) -> int:
        """The tokens of all items."""
        return sum(each.tokens for each in self.said)

    @property
    def turns(self) -> list[list[Item]]:
        """The items of each turn. A turn begins with a user message; items before the first are in none."""
        turns: list[list[Item]] = []
        for item in self.items:
            if kind_of(item) == "user":
                turns.append([item])
            elif turns:
                turns[-1].append(item)
        return turns

    def window(self, beside: int = 0) -> Window:
        """The view without bounds; `beside` is the tokens of the rest of a request."""
        window = Window(beside)
        for part in (self.shown, self.said[self.since :]):
            pinned = {place for place, each in enumerate(part) if each.pinned}
            window.add(_items(part), [each.tokens for each in part], pinned)
        return window

    def view(self, context: Context, anchor: Anchor = NOT_ANCHORED) -> list[Item]:
        """The items that a model sees, within a context. Use `await context.fit(window())` if a strategy asks a model.

        Raises `ContextOverflow` if the items that must stay do not fit.
        """
        return context.fit_now(self.window(), anchor).items

    def compact(self, window: Window) -> None:
        """Let the view start from a window that was made of it; all items stay in `said`."""
        plain = zip(window.items, window.tokens, window.pinned, strict=True)
        self.shown = [CountedItem(item=item, tokens=tokens, pinned=pinned) for item, tokens, pinned in plain]
        self.since = len(self.said)


def _items(counted: Sequence[CountedItem]) -> list[Item]:
    """The items, as copies."""
    items: Any = [detach(each.item, ()) for each in counted]
    return list(items)
