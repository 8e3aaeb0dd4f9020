"""Summaries: the oldest part of a conversation in the words of a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stateroom.agent.strategies import Bounds
from stateroom.agent.tokens import shown
from stateroom.agent.units import TOLD, Unit, kind_of, newest_question, older, units_of, without
from stateroom.agent.window import Window
from stateroom.errors import DefinitionError, ModelFailed, ModelUnavailable
from stateroom.model import Item, Model, Request, answer_of, message, text_of

logger = logging.getLogger(__name__)

PROMPT = (
    "You are given the older part of a conversation between a user and an assistant who uses tools. Write down what "
    "the assistant needs to know to go on without it: what the user wants, what was done and found out, with the exact "
    "names, numbers and ids, what was decided, and what is still to be done. Write nothing else."
)

HEADING = "What was said and done before this, in short:"

LEAST = 64
"""Tokens; a summary that may have fewer is not worth asking for."""


@dataclass(frozen=True)
class Summarise:
    """Puts one message of the assistant's, written by a model, in the place of what is oldest.

    What is newest stays as it is, as does what the user said last. If the model fails, or writes too much, nothing is
    changed, so that the next strategy has its turn.
    """

    model: Model
    prompt: str = PROMPT
    keep: float = 0.5
    """The share of the room that is left by what must stay, to be taken by what is newer than the summary."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep < 1:
            raise DefinitionError(f"Summarise keeps a share of the room, from 0 on and below 1, not {self.keep}")

    async def apply(self, window: Window, bounds: Bounds) -> Window:
        old = self._old(window, bounds)
        room = bounds.target - window.total + sum(unit.tokens for unit in old)
        if not old or room < LEAST:
            return window
        try:
            item = message(f"{HEADING}\n{await self._summary(window, old, room)}")
            tokens = bounds.counter.count(item)
            if tokens > room:
                raise ModelFailed(f"the summary has {tokens} tokens, and may have {room}")
        except (ModelFailed, ModelUnavailable) as error:
            logger.warning("a conversation was not summarised by %s: %s", self.model.name, error)
            return window
        shorter = without(window, old)
        after = len(window) - old[-1].stop
        shorter.insert(len(shorter) - after, item, tokens)
        return shorter

    def _old(self, window: Window, bounds: Bounds) -> list[Unit]:
        """What is to be summarised."""
        units = units_of(window)
        question = newest_question(units)
        old = older(units)
        must_stay = window.total - sum(unit.tokens for unit in old)
        left = self.keep * (bounds.target - must_stay)
        while old and old[-1].tokens <= left:
            left -= old.pop().tokens
        return [unit for unit in old if unit is not question]

    async def _summary(self, window: Window, old: Sequence[Unit], room: int) -> str:
        said = "\n\n".join(line for unit in old for line in _lines(window.items[unit.start : unit.stop]))
        items: list[Item] = [
            {"type": "message", "role": "system", "content": self.prompt},
            {"type": "message", "role": "user", "content": said},
        ]
        answer = await answer_of(self.model, Request(items, settings={"max_output_tokens": room}))
        text = "".join(text_of(item) for item in answer.items if item["type"] == "message").strip()
        if answer.truncated or not text:
            raise ModelFailed("the summary was cut off" if answer.truncated else "the summary is empty")
        return text


def _lines(items: Sequence[Item]) -> Iterator[str]:
    """What a model is to read of items that it did not take part in."""
    for item in items:
        kind = kind_of(item)
        if kind not in TOLD and kind != "reasoning":
            texts, _ = shown(item)
            yield f"{kind}: {' '.join(texts)}"
