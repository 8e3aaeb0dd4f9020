"""`StateroomSession`: what an agent of the OpenAI Agents SDK has said and heard, in any store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import resolve_session_limit

from stateroom.adapters.talk import Talks
from stateroom.store import Store, open_store

FRAMEWORK = "openai_agents"


class StateroomSession(SessionABC):
    """One conversation: give it to `Runner.run(agent, text, session=...)`."""

    def __init__(self, session_id: str, talks: Talks, settings: SessionSettings | None = None) -> None:
        self.session_id = session_id
        self.session_settings = settings
        self._talks = talks

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and most <= 0:
            return []
        return cast("list[TResponseInputItem]", await self._talks.messages(self.session_id, most))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if items:
            await self._talks.change(self.session_id, "add", messages=list(items))

    async def pop_item(self) -> TResponseInputItem | None:
        found: Any = await self._talks.change(self.session_id, "pop")
        return cast("TResponseInputItem | None", found)

    async def clear_session(self) -> None:
        await self._talks.change(self.session_id, "clear")


class StateroomSessions:
    """The conversations in a store. Any number of processes may share one."""

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        """`ttl` is how many seconds a conversation lives after its last use, by default for ever."""
        self._talks = Talks(store, FRAMEWORK, ttl, now)

    @classmethod
    @asynccontextmanager
    async def from_url(cls, url: str, *, ttl: float | None = None) -> AsyncIterator[Self]:
        """The conversations in the store that a URL names, for as long as the block runs."""
        async with open_store(url) as store:
            yield cls(store, ttl=ttl)

    def session(self, session_id: str, settings: SessionSettings | None = None) -> StateroomSession:
        """A conversation by its id, be it new or not."""
        return StateroomSession(session_id, self._talks, settings)
