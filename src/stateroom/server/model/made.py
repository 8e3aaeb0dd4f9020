"""An answer on its way to the client, in no API's words yet."""

from __future__ import annotations

import time
from secrets import token_hex
from typing import Any

import msgspec

from stateroom.agent import Estimate
from stateroom.model import Answer, Item, Usage
from stateroom.server.model.asked import Asked


class Made(msgspec.Struct, frozen=True):
    """What a model has answered to what it was asked."""

    asked: Asked
    answer: Answer
    model: str
    """How the model is called."""
    id: str = msgspec.field(default_factory=lambda: token_hex(12))
    at: float = msgspec.field(default_factory=time.time)

    @property
    def usage(self) -> Usage:
        """The tokens that it took: as the model tells, or else estimated."""
        if self.answer.usage is not None:
            return self.answer.usage
        request = self.asked.request
        given: list[Item] = [*request.items, *request.tools]
        instructions: Any = request.settings.get("instructions")
        if instructions:
            given.append({"type": "message", "content": instructions})
        count = Estimate().count
        return Usage(sum(map(count, given)), sum(map(count, self.answer.items)))
