"""Chat histories of LangChain in any store: `pip install 'stateroom[langchain]'`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from stateroom.adapters.common import Conversations, LoopWaiter
from stateroom.store import Store

__all__ = ["StateroomHistories", "StateroomHistory"]


class StateroomHistory(BaseChatMessageHistory):
    """A conversation. Call its sync methods only from other threads than the event loop's, such as in `invoke`."""

    def __init__(self, session_id: str, conversations: Conversations, waiter: LoopWaiter) -> None:
        self.session_id = session_id
        self._conversations = conversations
        self._waiter = waiter

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # LangChain's guide allows a property
        return self._waiter.wait(self.aget_messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        self._waiter.wait(self.aadd_messages(messages))

    def clear(self) -> None:
        self._waiter.wait(self.aclear())

    async def aget_messages(self) -> list[BaseMessage]:
        return messages_from_dict(await self._conversations.messages(self.session_id))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        if messages:
            await self._conversations.change(self.session_id, "add", messages=[*map(message_to_dict, messages)])

    async def aclear(self) -> None:
        await self._conversations.change(self.session_id, "clear")


class StateroomHistories(Conversations):
    """The conversations in a store: pass `histories.history` to `RunnableWithMessageHistory`.

    Create it on the event loop where the store was opened.
    """

    framework = "langchain"

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        super().__init__(store, ttl=ttl, now=now)
        self._waiter = LoopWaiter("`await history.aget_messages()`, `await chain.ainvoke(...)` and the like")

    def history(self, session_id: str) -> StateroomHistory:
        """A conversation by id, which need not exist yet."""
        return StateroomHistory(session_id, self, self._waiter)
