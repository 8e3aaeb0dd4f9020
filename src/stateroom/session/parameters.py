"""Parameters that a session fills in by name; the model never sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateroom.session.containment import Asked

SHARED = frozenset({"user", "app"})
"""States that sessions have in common: of a user, and of the whole environment."""

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
"""The parameters, each with what it is, for error messages."""


@dataclass(frozen=True)
class SessionInfo:
    """What a tool that asks for `session` learns of the session it works in."""

    id: str
    step: int
    """How many calls have changed the state before."""
    task: Any
    call_id: str | None = None
    user: str | None = None
    """Whose call it is, if a user was named: by the call, or by the message that the agent answers."""


class Ask:
    """Lets a tool ask a person: `answer = ask("Shall I pay 300?")`.

    The first time, the call ends there: nothing has changed, and the session waits. When there is an answer the tool
    runs again from its start, and is given it. So it asks before it does anything that lasts.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = iter(answers)

    def __call__(self, question: str) -> Any:
        try:
            return next(self._answers)
        except StopIteration:
            raise Asked(str(question)) from None
