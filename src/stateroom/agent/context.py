"""`Context`: how a conversation is kept within the tokens that a model may be shown."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from stateroom.agent.strategies import Bounds, ClearToolResults, DropOldest, Strategy
from stateroom.agent.tokens import Counter, Estimate
from stateroom.agent.units import TOLD, kind_of, older, units_of
from stateroom.agent.window import Window
from stateroom.errors import ContextOverflow, DefinitionError
from stateroom.model import Item

MOST = 2
"""A count is taken to be wrong by this factor at most: what is reported beyond it does not grow with the items."""


class Anchor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model reported for a request, against what was counted for the same one.

    What was reported beyond the count raises all later estimates, in the way that is safe: for a longer request it is
    taken to grow with the items (up to twice the count), for a shorter one to be still there, as far as the count can
    be wrong: by a factor of two, or by that which was reported. Fewer tokens than were counted change nothing: an
    estimate is never below the count.
    """

    counted: int = 0
    reported: int = 0

    def estimate(self, total: int) -> int:
        """The tokens that a model would report for a request that counts `total`, at most."""
        beyond = self.reported - self.counted
        if self.counted <= 0 or beyond <= 0:
            return total
        if total <= self.counted:
            return min(total + beyond, max(MOST * total, -(-total * self.reported // self.counted)))
        more = total - self.counted
        return self.reported + min(MOST * more, -(-more * self.reported // self.counted))

    def allowance(self, tokens: int) -> int:
        """What may be counted so that the estimate is at most `tokens`; below zero if nothing may."""
        beyond = self.reported - self.counted
        if self.counted <= 0 or beyond <= 0:
            return tokens
        if tokens <= self.reported:
            return max(tokens - beyond, min(tokens // MOST, tokens * self.counted // self.reported))
        more = tokens - self.reported
        return self.counted + max(more // MOST, more * self.counted // self.reported)


NOT_ANCHORED = Anchor()


@dataclass(frozen=True)
class Context:
    """Bounds on what a model is shown, and what is done to stay within them.

    A window that has outgrown the budget is given to the strategies in turn, until it has reached the target. So they
    have work to do only once in a while: what a step costs does not grow with the conversation.
    """

    budget: int | None = None
    """The tokens that the model may be shown; without any, there is no bound."""
    strategies: Sequence[Strategy] = (ClearToolResults(), DropOldest())
    """What makes a window smaller, the cheapest first."""
    counter: Counter = field(default_factory=Estimate)
    target: float = 0.7
    """The share of the budget that is left to a window that was made smaller."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise DefinitionError(f"a budget is a number of tokens from 1 on, or None, not {self.budget}")
        if not 0 < self.target <= 1:
            raise DefinitionError(f"a target is a share of the budget, above 0 and up to 1, not {self.target}")

    def count(self, items: Iterable[Item]) -> list[int]:
        """The tokens of each item."""
        return [self.counter.count(item) for item in items]

    def beside(self, tools: Iterable[Item], instructions: str = "") -> int:
        """The tokens of what a model is shown beside the items of a conversation."""
        told: list[Item] = [{"role": "system", "content": instructions}] if instructions else []
        return sum(self.count([*told, *tools]))

    def fits(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> bool:
        """Whether the model may be shown all of a window; takes the same time whatever its length."""
        return self.budget is None or anchor.estimate(window.total) <= self.budget

    async def fit(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> Window:
        """A window that the model may be shown: the same one if it fits, else a new one.

        Raises `ContextOverflow` if what must stay does not fit.
        """
        if self.budget is None or self.fits(window, anchor):
            return window
        bounds = self._bounds(self.budget, anchor)
        for strategy in self.strategies:
            if window.total > bounds.target:
                shorter = strategy.apply(window, bounds)
                window = await shorter if inspect.isawaitable(shorter) else shorter
        self._refuse_overflow(window, anchor)
        return window

    def fit_now(self, window: Window, anchor: Anchor = NOT_ANCHORED) -> Window:
        """The same without waiting, where nothing can be awaited: strategies that ask a model are refused."""
        for strategy in self.strategies:
            if inspect.iscoroutinefunction(strategy.apply):
                name = type(strategy).__name__
                raise DefinitionError(f"{name} takes time: await context.fit(…), or use a context without it")
        waiting = self.fit(window, anchor)
        try:
            waiting.send(None)
        except StopIteration as done:
            fitted: Window = done.value
            return fitted
        waiting.close()
        raise DefinitionError("a strategy of this context takes time: await context.fit(…)")

    def _bounds(self, budget: int, anchor: Anchor) -> Bounds:
        return Bounds(anchor.allowance(int(budget * self.target)), anchor.allowance(budget), self.counter)

    def _refuse_overflow(self, window: Window, anchor: Anchor) -> None:
        if self.fits(window, anchor):
            return
        estimate = anchor.estimate(window.total)
        parts = [*_parts(window), ("that the model reports beyond the count", estimate - window.total)]
        told = ", ".join(f"{tokens} {what}" for what, tokens in parts if tokens)
        raise ContextOverflow(
            f"the model may be shown {self.budget} tokens, and what is left to show takes {estimate} ({told}; counted "
            f"by {self.counter.name}): raise the budget, pin less, let tools return less, or let DropOldest() be the "
            "last strategy"
        )


def _parts(window: Window) -> list[tuple[str, int]]:
    """What the tokens of a window are for."""
    system = sum(tokens for item, tokens in zip(window.items, window.tokens, strict=True) if kind_of(item) in TOLD)
    units = units_of(window)
    loose = sum(unit.tokens for unit in units)
    old = sum(unit.tokens for unit in older(units))
    return [
        ("for tools and instructions", window.beside),
        ("for system and developer messages", system),
        ("for pinned items and what belongs to them", window.total - window.beside - system - loose),
        ("for what is older", old),
        ("for what is newest", loose - old),
    ]
