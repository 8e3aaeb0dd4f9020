"""Sessions of the OpenAI Agents SDK in any store: `pip install 'stateroom[openai-agents]'`."""

from __future__ import annotations

from typing import cast

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import resolve_session_limit

from stateroom.adapters.common import Conversations

__all__ = ["StateroomSession", "StateroomSessions"]


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
        return cast("TResponseInputItem | None", await self._conversations.change(self.session_id, "pop"))

    async def clear_session(self) -> None:
        await self._conversations.change(self.session_id, "clear")


class StateroomSessions(Conversations):
    """The conversations in a store. Any number of processes may share a conversation."""

    framework = "openai_agents"

    def session(self, session_id: str, settings: SessionSettings | None = None) -> StateroomSession:
        """A conversation by id, which need not exist yet."""
        return StateroomSession(session_id, self, settings)
