"""A conversation of another framework's: a list of messages in whatever form it has them, kept as a session."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pydantic import JsonValue

from stateroom.environment import Environment, tool
from stateroom.errors import SessionExpired, StoreError, UnknownSession
from stateroom.session import Result, Session, Sessions
from stateroom.state import State
from stateroom.store import Store

NEVER = 1e11
"""Seconds that a conversation lives if nobody says for how long: some three thousand years."""


class Talk(State):
    """What was said."""

    messages: list[dict[str, JsonValue]] = []


class TalkEnvironment(Environment[Talk]):
    """What can be done to a conversation."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # each framework's conversations have one of their own

    @tool
    def add(self, state: Talk, messages: list[dict[str, JsonValue]]) -> int:
        """Add messages."""
        state.messages.extend(messages)
        return len(state.messages)

    @tool
    def pop(self, state: Talk) -> dict[str, JsonValue] | None:
        """Take the newest message away."""
        return state.messages.pop() if state.messages else None

    @tool
    def clear(self, state: Talk) -> int:
        """Take all messages away."""
        removed = len(state.messages)
        state.messages.clear()
        return removed

    def verify(self) -> float:
        return 0.0


class Talks:
    """The conversations of one framework in a store, each under an id of the framework's."""

    def __init__(self, store: Store, framework: str, ttl: float | None, now: Callable[[], float] = time.time) -> None:
        self._framework = framework
        self._sessions = Sessions[Talk](TalkEnvironment(framework), store, ttl=ttl or NEVER, now=now)

    async def messages(self, name: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The messages of a conversation, or only so many of the newest; there are none if nobody has begun it."""
        try:
            session = await self._sessions.open(self._id(name))
        except (UnknownSession, SessionExpired):
            return []
        said = session.state.messages
        return [_plain(each) for each in (said if limit is None else said[max(len(said) - limit, 0) :])]

    async def change(self, name: str, how: str, **given: Any) -> Any:
        """Change a conversation, which begins with that if there is none."""
        result: Result = await (await self._open(name)).call(how, given)
        if not result.ok:
            raise StoreError(f"the conversation {name!r} cannot be changed: {result.error}")
        return result.output

    async def _open(self, name: str) -> Session[Talk]:
        session_id = self._id(name)
        try:
            return await self._sessions.open(session_id)
        except SessionExpired:
            await self._sessions.store.delete(session_id)
        except UnknownSession:
            pass
        try:
            return await self._sessions.seed({}, session_id=session_id)
        except StoreError:  # another process has begun it meanwhile
            return await self._sessions.open(session_id)

    def _id(self, name: str) -> str:
        return f"{self._framework}:{name}"


def _plain(value: Any) -> Any:
    """A copy of JSON data with which whoever gets it may do as they like."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
