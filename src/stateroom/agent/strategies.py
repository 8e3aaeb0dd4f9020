"""Strategies that shrink a window; each returns a new window."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from stateroom.agent.counters import TokenCounter, readable
from stateroom.agent.window import (
    ANSWERS,
    INSTRUCTIONS,
    Size,
    Unit,
    Window,
    droppable,
    newest_question,
    units_of,
    without,
)
from stateroom.errors import DefinitionError, ModelFailed, ModelUnavailable
from stateroom.model import Item, Model, Request, answer_of, input_items, kind_of, message, message_text

logger = logging.getLogger(__name__)

CLEARED = "[an old result, no longer shown]"

PROMPT = (
    "You are given the older part of a conversation between a user and an assistant who uses tools. Write down what "
    "the assistant needs to know to go on without it: what the user wants, what was done and found out, with the exact "
    "names, numbers and ids, what was decided, and what is still to be done. Write nothing else."
)

HEADING = "What was said and done before this, in short:"

MIN_SUMMARY_TOKENS = 64
"""Tokens; a shorter summary is not worth a request."""


class Bounds(NamedTuple):
    """The size that a window should have; its tokens are counted ones."""

    target: Size
    """The wanted maximum."""
    budget: Size
    """The hard maximum."""
    counter: TokenCounter
    """Counts items that a strategy makes."""


class Strategy(Protocol):
    """Shrinks a window. May be async.

    A strategy drops whole units (`units_of`), or changes the content of an item. It keeps pinned items, and system and
    developer messages. It returns a new window, or the one it got if there is nothing to do.
    """

    def apply(self, window: Window, bounds: Bounds) -> Window | Awaitable[Window]:
        """Return a window with fewer tokens or messages, at best within the target."""


_CLEARABLE = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True)
class ClearToolResults:
    """Replaces old tool results by a placeholder, oldest first; the calls stay.

    The newest `keep` results stay, and those that the model has not seen yet.
    """

    keep: int = 3
    placeholder: str = CLEARED

    def __post_init__(self) -> None:
        _check_least("ClearToolResults(keep)", self.keep, 0)

    def apply(self, window: Window, bounds: Bounds) -> Window:
        shorter = window.copy()
        for place in self._old(window):
            if shorter.total <= bounds.target.tokens:
                break
            cleared = {**window.items[place], "output": self.placeholder}
            tokens = bounds.counter.count(cleared)
            if tokens < window.tokens[place]:
                shorter.replace_item(place, cleared, tokens)
        return shorter

    def _old(self, window: Window) -> list[int]:
        """The indexes of the results that may be cleared."""
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
    """Drops all but the last `n` turns. A turn begins with a user message."""

    n: int

    def __post_init__(self) -> None:
        _check_least("KeepLastTurns(n)", self.n, 1)

    def apply(self, window: Window, bounds: Bounds) -> Window:
        units = units_of(window)
        turns = [place for place, unit in enumerate(units) if unit.asks]
        if len(turns) <= self.n:
            return window
        return without(window, [unit for unit in units[: turns[-self.n]] if unit.loose])


@dataclass(frozen=True)
class DropOldest:
    """Drops the oldest units, until the rest is small enough.

    It drops the newest user message only if nothing else helps, and never the newest unit.
    """

    def apply(self, window: Window, bounds: Bounds) -> Window:
        units = units_of(window)
        question = newest_question(units)
        dropped: list[Unit] = []
        left = window.size
        for unit in droppable(units):
            if left.within(bounds.target):
                break
            if unit is not question:
                dropped.append(unit)
                left -= unit.size
        if not left.within(bounds.budget):
            dropped += [unit for unit in droppable(units) if unit is question]
        return without(window, dropped)


@dataclass(frozen=True)
class Summarise:
    """Replaces the oldest units by a summary that a model writes, as one assistant message.

    The newest units stay, and the newest user message. If the model fails, or its summary is too long, the window stays
    as it is, and the next strategy applies.
    """

    model: Model
    prompt: str = PROMPT
    keep: float = 0.5
    """The share of the free tokens for units newer than the summary."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep < 1:
            raise DefinitionError(f"Summarise(keep) must be at least 0 and below 1, not {self.keep}")

    async def apply(self, window: Window, bounds: Bounds) -> Window:
        old = self._old(window, bounds)
        room = bounds.target.tokens - window.total + sum(unit.size.tokens for unit in old)
        if not old or room < MIN_SUMMARY_TOKENS:
            return window
        try:
            item = message(f"{HEADING}\n{await self._summary(window, old, room)}")
            tokens = bounds.counter.count(item)
            if tokens > room:
                raise ModelFailed(f"the summary has {tokens} tokens; at most {room} are allowed")
        except (ModelFailed, ModelUnavailable) as error:
            logger.warning("%s did not summarise a conversation: %s", self.model.name, error)
            return window
        shorter = without(window, old)
        after = len(window) - old[-1].stop
        shorter.insert(len(shorter) - after, item, tokens)
        return shorter

    def _old(self, window: Window, bounds: Bounds) -> list[Unit]:
        """The units to summarise."""
        units = units_of(window)
        question = newest_question(units)
        old = [unit for unit in droppable(units) if unit is not question]
        must_stay = window.size
        for unit in old:
            must_stay -= unit.size
        free = bounds.target - must_stay
        left = Size(self.keep * free.tokens, free.messages - 1)  # the summary is a message
        while old and old[-1].size.within(left):
            left -= old.pop().size
        return old

    async def _summary(self, window: Window, old: Sequence[Unit], room: float) -> str:
        conversation = "\n\n".join(line for unit in old for line in _lines(window.items[unit.start : unit.stop]))
        items = [{"type": "message", "role": "system", "content": self.prompt}, *input_items(conversation)]
        settings = {} if room == inf else {"max_output_tokens": room}
        answer = await answer_of(self.model, Request(items, settings=settings))
        text = message_text(answer.items).strip()
        if answer.truncated or not text:
            raise ModelFailed("the summary was cut off" if answer.truncated else "the summary is empty")
        return text


def _check_least(what: str, given: int, least: int) -> None:
    if given < least:
        raise DefinitionError(f"{what} must be at least {least}, not {given}")


def _lines(items: Sequence[Item]) -> Iterator[str]:
    """The items of a conversation as text for the summary's model."""
    for item in items:
        kind = kind_of(item)
        if kind not in INSTRUCTIONS and kind != "reasoning":
            texts, _ = readable(item)
            yield f"{kind}: {' '.join(texts)}"
