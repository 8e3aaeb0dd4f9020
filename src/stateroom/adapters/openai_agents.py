"""Sessions of the OpenAI Agents SDK in any store: `pip install 'stateroom[openai-agents]'`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import resolve_session_limit

from stateroom.adapters.common import Conversations
from stateroom.store import Store, open_store

__all__ = ["StateroomSession", "StateroomSessions"]

FRAMEWORK = "openai_agents"


class StateroomSession(SessionABC):
    """A conversation: pass it to `Runner.run(agent, text, session=...)`."""

    def __init__(self, session_id: str, conversations: Conversations, settings: SessionSettings | None = None) -> None:
        self.session_id = session_id
        self.session_settings = settings
        self._conversations = conversations

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and most <= 0:
            return []
        return cast("list[TResponseInputItem]", await self._conversations.messages(self.session_id, most))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if items:
            await self._conversations.change(self.session_id, "add", messages=list(items))

    async def pop_item(self) -> TResponseInputItem | None:
        found: Any = await self._conversations.change(self.session_id, "pop")
        return cast("TResponseInputItem | None", found)

    async def clear_session(self) -> None:
        await self._conversations.change(self.session_id, "clear")


class StateroomSessions:
    """The conversations in a store. Any number of processes may share a conversation."""

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        """`ttl` is the time to live after the last use, in seconds; by default conversations do not expire."""
        self._conversations = Conversations(store, FRAMEWORK, ttl, now)

    @classmethod
    @asynccontextmanager
    async def from_url(cls, url: str, *, ttl: float | None = None) -> AsyncIterator[Self]:
        """Open the store of a URL for the length of the block."""
        async with open_store(url) as store:
            yield cls(store, ttl=ttl)

    def session(self, session_id: str, settings: SessionSettings | None = None) -> StateroomSession:
        """A conversation by its id; it need not exist yet."""
        return StateroomSession(session_id, self._conversations, settings)
