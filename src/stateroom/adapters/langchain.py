"""Chat histories of LangChain in any store: `pip install 'stateroom[langchain]'`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from stateroom.adapters.common import Blocking, Conversations
from stateroom.store import Store, open_store

__all__ = ["StateroomHistories", "StateroomHistory"]

FRAMEWORK = "langchain"


class StateroomHistory(BaseChatMessageHistory):
    """A conversation. Its sync methods are for threads other than the event loop's, such as those of `invoke`."""

    def __init__(self, session_id: str, conversations: Conversations, blocking: Blocking) -> None:
        self.session_id = session_id
        self._conversations = conversations
        self._blocking = blocking

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # LangChain's guide allows a property
        return self._blocking.wait(self.aget_messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        self._blocking.wait(self.aadd_messages(messages))

    def clear(self) -> None:
        self._blocking.wait(self.aclear())

    async def aget_messages(self) -> list[BaseMessage]:
        return messages_from_dict(await self._conversations.messages(self.session_id))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        if messages:
            added = [message_to_dict(each) for each in messages]
            await self._conversations.change(self.session_id, "add", messages=added)

    async def aclear(self) -> None:
        await self._conversations.change(self.session_id, "clear")


class StateroomHistories:
    """The conversations in a store: pass `histories.history` to `RunnableWithMessageHistory`.

    Make it on the event loop where the store was opened.
    """

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        """`ttl` is the time to live after the last use, in seconds; by default conversations do not expire."""
        self._conversations = Conversations(store, FRAMEWORK, ttl, now)
        self._blocking = Blocking("`await history.aget_messages()`, `await chain.ainvoke(...)` and the like")

    @classmethod
    @asynccontextmanager
    async def from_url(cls, url: str, *, ttl: float | None = None) -> AsyncIterator[Self]:
        """Open the store of a URL for the length of the block."""
        async with open_store(url) as store:
            yield cls(store, ttl=ttl)

    def history(self, session_id: str) -> StateroomHistory:
        """A conversation by its id; it need not exist yet."""
        return StateroomHistory(session_id, self._conversations, self._blocking)
