"""`Context` keeps a conversation within the tokens that a model may see, also a `Conversation` in an author's state."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt

from stateroom.agent.counters import Estimate, TokenCounter
from stateroom.agent.strategies import Bounds, ClearToolResults, DropOldest, Strategy
from stateroom.agent.window import INSTRUCTIONS, Size, Window, droppable, units_of
from stateroom.errors import ContextOverflow, DefinitionError
from stateroom.model import Item, kind_of
from stateroom.state import detach

MAX_FACTOR = 2
"""A count is assumed wrong by at most this factor: a surplus beyond it does not grow with the items."""


class Anchor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens that a model reported for a request, and the count for the same request.

    A surplus of the report over the count raises later estimates, on the safe side. For a longer request the surplus
    grows with the items (up to twice the count). For a shorter one it stays, as far as the count can be wrong: by a
    factor of two, or by the reported factor. A report below the count changes nothing: an estimate is never below the
    count.
    """

    counted: int = 0
    reported: int = 0

    def estimate(self, total: int) -> int:
        """An upper bound of what a model reports for a request that counts `total` tokens."""
        surplus = self.reported - self.counted
        if self.counted <= 0 or surplus <= 0:
            return total
        if total <= self.counted:
            return min(total + surplus, max(MAX_FACTOR * total, -(-total * self.reported // self.counted)))
        more = total - self.counted
        return self.reported + min(MAX_FACTOR * more, -(-more * self.reported // self.counted))

    def allowance(self, tokens: int) -> int:
        """The highest count whose estimate is at most `tokens`; below zero if there is none."""
        surplus = self.reported - self.counted
        if self.counted <= 0 or surplus <= 0:
            return tokens
        if tokens <= self.reported:
            return max(tokens - surplus, min(tokens // MAX_FACTOR, tokens * self.counted // self.reported))
        more = tokens - self.reported
        return self.counted + max(more // MAX_FACTOR, more * self.counted // self.reported)


NOT_ANCHORED = Anchor()


@dataclass(frozen=True)
class Context:
    """Limits on what a model sees, in tokens and in messages, and the strategies that keep a conversation within them.

    When a window exceeds a limit, the strategies apply in order until it reaches the target. They run only
    occasionally, so the cost of a step does not grow with the conversation.
    """

    budget: int | None = None
    """Maximum tokens that the model sees; None for no limit."""
    strategies: Sequence[Strategy] = (ClearToolResults(), DropOldest())
    """Strategies that shrink a window, cheapest first."""
    counter: TokenCounter = field(default_factory=Estimate)
    target: float = 0.7
    """The share of each limit to which the strategies shrink a window."""
    messages: int | None = None
    """Maximum messages that the model sees; None for no limit. Each item counts, such as a call or its result."""

    def __post_init__(self) -> None:
        for name, bound in (("budget", self.budget), ("messages", self.messages)):
            if bound is not None and bound < 1:
                raise DefinitionError(f"{name} must be at least 1, or None, not {bound}")
        if not 0 < self.target <= 1:
            raise DefinitionError(f"target must be above 0 and at most 1, not {self.target}")

    def count(self, items: Iterable[Item]) -> list[int]:
        """The tokens of each item."""
        return [self.counter.count(item) for item in items]

    def beside(self, tools: Iterable[Item], instructions: str = "") -> int:
        """The tokens of tools and instructions, which are part of each request."""
        system: list[Item] = [{"role": "system", "content": instructions}] if instructions else []
        return sum(self.count([*system, *tools]))

    def fits(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> bool:
        """Whether a window is within the bounds; O(1), whatever its length."""
        return window.size.within(self._bound(1.0, anchor))

    async def fit(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> Window:
        """Return a window within the bounds: the same one if it fits, else a new one.

        Raises `ContextOverflow` if the items that must stay do not fit.
        """
        if self.fits(window, anchor):
            return window
        bounds = Bounds(self._bound(self.target, anchor), self._bound(1.0, anchor), self.counter)
        for strategy in self.strategies:
            if not window.size.within(bounds.target):
                shorter = strategy.apply(window, bounds)
                window = await shorter if inspect.isawaitable(shorter) else shorter
        self._ensure_fits(window, anchor)
        return window

    def fit_now(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> Window:
        """`fit` for sync code. Raises `DefinitionError` if a strategy asks a model."""
        for strategy in self.strategies:
            if inspect.iscoroutinefunction(strategy.apply):
                name = type(strategy).__name__
                raise DefinitionError(f"{name} is async; await context.fit(…), or use a context without it")
        waiting = self.fit(window, anchor)
        try:
            waiting.send(None)
        except StopIteration as done:
            fitted: Window = done.value
            return fitted
        waiting.close()
        raise DefinitionError("a strategy of this context is async; await context.fit(…)")

    def _bound(self, share: float, anchor: Anchor) -> Size:
        """The size that takes a share of the bounds."""
        tokens = inf if self.budget is None else anchor.allowance(int(self.budget * share))
        return Size(tokens, inf if self.messages is None else int(self.messages * share))

    def _ensure_fits(self, window: Window, anchor: Anchor) -> None:
        if self.fits(window, anchor):
            return
        if self.messages is not None and len(window) > self.messages:
            raise ContextOverflow(
                f"the limit is {self.messages} messages, but {len(window)} remain: raise the limit, pin less, or use "
                "DropOldest() as the last strategy"
            )
        estimate = anchor.estimate(window.total)
        parts = [*_parts(window), ("reported by the model beyond the count", estimate - window.total)]
        listed = ", ".join(f"{tokens} {what}" for what, tokens in parts if tokens)
        raise ContextOverflow(
            f"the budget is {self.budget} tokens, but {estimate} remain ({listed}; counted by "
            f"{self.counter.name}): raise the budget, pin less, let tools return less, or use DropOldest() as the last "
            "strategy"
        )


def _parts(window: Window) -> list[tuple[str, int]]:
    """The tokens of a window by their use."""
    counted = zip(window.items, window.tokens, strict=True)
    system = sum(tokens for item, tokens in counted if kind_of(item) in INSTRUCTIONS)
    units = units_of(window)
    loose = sum(int(unit.size.tokens) for unit in units)
    old = sum(int(unit.size.tokens) for unit in droppable(units))
    return [
        ("for tools and instructions", window.beside),
        ("for system and developer messages", system),
        ("for pinned items and their units", window.total - window.beside - system - loose),
        ("for older items", old),
        ("for the newest items", loose - old),
    ]


ESTIMATE = Estimate()


class CountedItem(BaseModel):
    """An item of a conversation, and its tokens."""

    model_config = ConfigDict(extra="forbid")

    item: dict[str, JsonValue]
    tokens: NonNegativeInt
    pinned: bool = False
    """Whether a model always sees it."""


class Conversation(BaseModel):
    """A conversation, with the tokens of each item; any `State` can have a field of this type.

    It keeps all items. A model sees a bounded view of them, which costs O(its size) if it starts from the previous
    view: see `compact`.
    """

    model_config = ConfigDict(extra="forbid")

    said: list[CountedItem] = []
    """All items, in order; `add` adds to them."""
    shown: list[CountedItem] = []
    """The items that a model sees in place of the first `since` items."""
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
        """The items of each turn. A turn begins with a user message; earlier items belong to no turn."""
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
        """Start the view from a window that was made from it; all items stay in `said`."""
        plain = zip(window.items, window.tokens, window.pinned, strict=True)
        self.shown = [CountedItem(item=item, tokens=tokens, pinned=pinned) for item, tokens, pinned in plain]
        self.since = len(self.said)


def _items(counted: Sequence[CountedItem]) -> list[Item]:
    """The items, as copies."""
    items: Any = [detach(each.item, ()) for each in counted]
    return list(items)
