"""What answers an agent's messages, as a session runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stateroom.session.program import Effect, Procedure


@dataclass(frozen=True)
class Reply:
    """An environment's `reply`: like a tool that writes, but nothing that a model could call."""

    procedure: Procedure
    hears: bool
    """Whether it asks for the message."""
    name: ClassVar[str] = "reply"
    effect: ClassVar[Effect] = "write"
    retries_unknown: ClassVar[bool] = False
    definition: ClassVar[dict[str, Any]] = {}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The message, if that is asked for."""
        return dict(arguments) if self.hears else {}
