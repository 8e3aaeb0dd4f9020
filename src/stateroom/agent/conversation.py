"""`Conversation`: what was said, as part of an author's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt

from stateroom.agent.context import NOT_ANCHORED, Anchor, Context
from stateroom.agent.tokens import Counter, Estimate
from stateroom.agent.units import asks
from stateroom.agent.window import Window
from stateroom.model import Item
from stateroom.state.values import detach

ESTIMATE = Estimate()


class CountedItem(BaseModel):
    """An item of a conversation, and what it counts."""

    model_config = ConfigDict(extra="forbid")

    item: dict[str, JsonValue]
    tokens: NonNegativeInt
    pinned: bool = False
    """Whether a model is always shown it."""


class Conversation(BaseModel):
    """What was said, with the tokens of each item as it came; a field of this type can be in any `State`.

    All of it is kept. What a model is shown is a view within bounds, which costs as much as what it shows if it starts
    from what was shown before: see `compact`.
    """

    model_config = ConfigDict(extra="forbid")

    said: list[CountedItem] = []
    """All items, in order. Add to it by `add`."""
    shown: list[CountedItem] = []
    """What a model is shown in the place of the first `since` items."""
    since: NonNegativeInt = 0

    def add(self, given: Item | Sequence[Item], *, counter: Counter = ESTIMATE, pinned: bool = False) -> None:
        """Say something more: an item, or several."""
        items = [given] if isinstance(given, dict) else given
        self.said.extend(CountedItem(item=item, tokens=counter.count(item), pinned=pinned) for item in items)

    @property
    def items(self) -> list[Item]:
        """All that was said."""
        return _items(self.said)

    @property
    def total(self) -> int:
        """The tokens of all that was said."""
        return sum(each.tokens for each in self.said)

    @property
    def turns(self) -> list[list[Item]]:
        """What was said in each turn. A turn begins with a message of the user's; what is before belongs to none."""
        turns: list[list[Item]] = []
        for item in self.items:
            if asks(item):
                turns.append([item])
            elif turns:
                turns[-1].append(item)
        return turns

    def window(self, beside: int = 0) -> Window:
        """What a model would be shown if there were no bounds; `beside` are the tokens of what is shown besides."""
        window = Window(beside)
        for part in (self.shown, self.said[self.since :]):
            pinned = {place for place, each in enumerate(part) if each.pinned}
            window.add(_items(part), [each.tokens for each in part], pinned)
        return window

    def view(self, context: Context, anchor: Anchor = NOT_ANCHORED) -> list[Item]:
        """What a model is shown, within bounds. A context that asks a model takes time: `await context.fit(window())`.

        Raises `ContextOverflow` if what must stay does not fit.
        """
        return context.fit_now(self.window(), anchor).items

    def compact(self, window: Window) -> None:
        """Let the view start from a window that was made of it; nothing of what was said is lost."""
        plain = zip(window.items, window.tokens, window.pinned, strict=True)
        self.shown = [CountedItem(item=item, tokens=tokens, pinned=pinned) for item, tokens, pinned in plain]
        self.since = len(self.said)


def _items(counted: Sequence[CountedItem]) -> list[Item]:
    """The items themselves, as data that is nobody else's."""
    items: Any = [detach(each.item, ()) for each in counted]
    return list(items)
