"""`StateroomHistory`: what was said in a LangChain conversation, in any store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from stateroom.adapters.blocking import Blocking
from stateroom.adapters.talk import Talks
from stateroom.store import Store, open_store

FRAMEWORK = "langchain"


class StateroomHistory(BaseChatMessageHistory):
    """One conversation. What is not async is for other threads than the event loop's, such as those of `invoke`."""

    def __init__(self, session_id: str, talks: Talks, blocking: Blocking) -> None:
        self.session_id = session_id
        self._talks = talks
        self._blocking = blocking

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # their guide lets it be a property
        return self._blocking.wait(self.aget_messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        self._blocking.wait(self.aadd_messages(messages))

    def clear(self) -> None:
        self._blocking.wait(self.aclear())

    async def aget_messages(self) -> list[BaseMessage]:
        return messages_from_dict(await self._talks.messages(self.session_id))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        if messages:
            await self._talks.change(self.session_id, "add", messages=[message_to_dict(each) for each in messages])

    async def aclear(self) -> None:
        await self._talks.change(self.session_id, "clear")


class StateroomHistories:
    """The conversations in a store: `histories.history` is what `RunnableWithMessageHistory` asks for one.

    To be made on the loop on which the store was opened.
    """

    def __init__(self, store: Store, *, ttl: float | None = None, now: Callable[[], float] = time.time) -> None:
        """`ttl` is how many seconds a conversation lives after its last use, by default for ever."""
        self._talks = Talks(store, FRAMEWORK, ttl, now)
        self._blocking = Blocking("`await history.aget_messages()`, `await chain.ainvoke(...)` and the like")

    @classmethod
    @asynccontextmanager
    async def from_url(cls, url: str, *, ttl: float | None = None) -> AsyncIterator[Self]:
        """The conversations in the store that a URL names, for as long as the block runs."""
        async with open_store(url) as store:
            yield cls(store, ttl=ttl)

    def history(self, session_id: str) -> StateroomHistory:
        """A conversation by its id, be it new or not."""
        return StateroomHistory(session_id, self._talks, self._blocking)
