"""The shared parts of the adapters: other frameworks' conversations, and async work from any thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self, TypeVar

from pydantic import JsonValue

from stateroom.environment import Environment, tool
from stateroom.errors import SessionExpired, StoreError, UnknownSession
from stateroom.session import Result, Session, SessionLimits, Sessions
from stateroom.state import State
from stateroom.store import Store, open_store

T = TypeVar("T")

FOREVER_SECONDS = 1e11
"""The time to live of conversations that do not expire, in seconds: about three thousand years."""


class Messages(State):
    """A conversation: messages in the format of the framework."""

    messages: list[dict[str, JsonValue]] = []


class MessagesEnvironment(Environment[Messages]):
    """The operations on a conversation."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # each framework has its own

    @tool
    def add(self, state: Messages, messages: list[dict[str, JsonValue]]) -> int:
        """Add messages."""
        state.messages.extend(messages)
        return len(state.messages)

    @tool
    def pop(self, state: Messages) -> dict[str, JsonValue] | None:
        """Remove the newest message."""
        return state.messages.pop() if state.messages else None

    @tool
    def clear(self, state: Messages) -> int:
        """Remove all messages."""
        removed = len(state.messages)
        state.messages.clear()
        return removed

    def verify(self) -> float:
        return 0.0


class Conversations:
    """The conversations of one framework in a store. Any number of processes may share a conversation.

    Each is a session whose id begins with the framework's name.
    """

    framework: ClassVar[str]

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        """`ttl` is the time to live after the last use, in seconds; by default conversations do not expire."""
        limits = SessionLimits(ttl=ttl or FOREVER_SECONDS, now=now)
        self._sessions = Sessions[Messages](MessagesEnvironment(self.framework), store, limits)

    @classmethod
    @asynccontextmanager
    async def from_url(cls, url: str, *, ttl: float | None = None) -> AsyncIterator[Self]:
        """Open the store at a URL for the duration of the block."""
        async with open_store(url) as store:
            yield cls(store, ttl=ttl)

    async def messages(self, name: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The messages of a conversation, or the newest `limit` of them; empty if it does not exist."""
        try:
            session = await self._sessions.open(self._id(name))
        except (UnknownSession, SessionExpired):
            return []
        messages = session.state.messages
        first = 0 if limit is None else max(len(messages) - limit, 0)
        return [_copy(message) for message in messages[first:]]

    async def change(self, name: str, tool: str, **arguments: Any) -> Any:
        """Call a tool of a conversation, which is created if it does not exist."""
        result: Result = await (await self._open(name)).call(tool, arguments)
        if not result.ok:
            raise StoreError(f"cannot change the conversation {name!r}: {result.error}")
        return result.output

    async def _open(self, name: str) -> Session[Messages]:
        session_id = self._id(name)
        try:
            return await self._sessions.open(session_id)
        except SessionExpired:
            await self._sessions.store.delete(session_id)
        except UnknownSession:
            pass
        try:
            return await self._sessions.seed({}, session_id=session_id)
        except StoreError:  # another process has created it
            return await self._sessions.open(session_id)

    def _id(self, name: str) -> str:
        return f"{self.framework}:{name}"


class LoopWaiter:
    """Lets other threads wait for async work on the event loop where this object was created."""

    def __init__(self, instead: str) -> None:
        """`instead` names what to use on the event loop itself, which must not be blocked."""
        self.loop = asyncio.get_running_loop()
        self._instead = instead

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run async work, and return its result."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            work.close()
            raise asyncio.InvalidStateError(f"this call would block its own event loop; use {self._instead}")
        if self.loop.is_closed():
            work.close()
            raise asyncio.InvalidStateError("the event loop is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def _copy(value: Any) -> Any:
    """A copy of JSON data that the caller may change."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
