"""LangChain's chat histories on our stores."""

import asyncio
import warnings
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from stateroom.adapters.langchain import StateroomHistories, StateroomHistory
from stateroom.store import Store, open_store
from tests.messages import raises

EVERY_KIND: list[BaseMessage] = [
    SystemMessage("be kind"),
    HumanMessage([{"type": "text", "text": "hi"}], id="h1"),
    AIMessage("", tool_calls=[{"name": "add", "args": {"number": 1}, "id": "c1"}], response_metadata={"model": "m"}),
    ToolMessage("2", tool_call_id="c1"),
    AIMessage("it is 2"),
]


@pytest.mark.every_store
async def test_messages_of_every_kind_come_back_as_they_were(url: str) -> None:
    async with StateroomHistories.from_url(url) as histories:
        await histories.history("h").aadd_messages(EVERY_KIND)
        assert await histories.history("h").aget_messages() == EVERY_KIND
        assert await histories.history("other").aget_messages() == []
    if not url.startswith("memory"):
        async with StateroomHistories.from_url(url) as histories:
            history = histories.history("h")
            assert await history.aget_messages() == EVERY_KIND
            await history.aclear()
            assert await history.aget_messages() == []


async def test_a_chain_remembers(store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chain is deprecated by LangChain itself, and still in use
        from langchain_core.runnables.history import RunnableWithMessageHistory  # noqa: PLC0415

        histories = StateroomHistories(store)
        model = GenericFakeChatModel(messages=iter([AIMessage("one"), AIMessage("two"), AIMessage("three")]))
        chain: Any = RunnableWithMessageHistory(model, histories.history)
        config: Any = {"configurable": {"session_id": "h"}}
        await chain.ainvoke([HumanMessage("first")], config)
        await chain.ainvoke([HumanMessage("second")], config)
        await asyncio.to_thread(chain.invoke, [HumanMessage("third")], config)
        said = [message.content for message in await histories.history("h").aget_messages()]
        assert said == ["first", "one", "second", "two", "third", "three"]


async def test_other_threads_may_wait_and_the_loop_itself_must_not(store: Store) -> None:
    history = StateroomHistories(store).history("h")
    await asyncio.to_thread(history.add_user_message, "hi")
    assert [message.content for message in await asyncio.to_thread(lambda: history.messages)] == ["hi"]
    await asyncio.to_thread(history.clear)
    with raises(asyncio.InvalidStateError):
        _ = history.messages


def test_without_its_loop_a_history_says_so_and_leaves_nothing_behind() -> None:
    async def begin() -> StateroomHistory:
        async with open_store("memory://") as store:
            return StateroomHistories(store).history("h")

    history = asyncio.run(begin())
    with raises(asyncio.InvalidStateError):
        _ = history.messages
