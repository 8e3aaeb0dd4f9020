"""Parameters that a session injects by name; the model never sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateroom.session.containment import Asked

SHARED = frozenset({"user", "app"})
"""Shared states: of a user, and of the whole environment."""

INJECTED = {
    "state": "the session's state",
    "session": "the session's id, step and task",
    "rng": "the session's random generator",
    "clock": "the session's clock",
    "new_id": "a function that makes ids",
    "ask": "a question to the user",
    "user": "the state of the task's user",
    "app": "the state that all sessions share",
}
"""The parameters, with descriptions for error messages."""


@dataclass(frozen=True)
class SessionInfo:
    """Information about the session, for a tool with the parameter `session`."""

    id: str
    step: int
    """The number of earlier calls that changed the state."""
    task: Any
    call_id: str | None = None
    user: str | None = None
    """The user whose call it is, if the call, or the message that the agent answers, names one."""


class Ask:
    """Lets a tool ask a person: `answer = ask("Shall I pay 300?")`.

    The first time, the call ends there: nothing has changed, and the session waits. With the answer, the tool runs
    again from its start, and `ask` returns the answer. So ask before you do anything with an external effect.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = iter(answers)

    def __call__(self, question: str) -> Any:
        try:
            return next(self._answers)
        except StopIteration:
            raise Asked(str(question)) from None
