"""Sessions of the OpenAI Agents SDK on our stores: they do what the SDK's own do, and outlive the process."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
from agents.items import ModelResponse
from agents.memory import Session, SessionSettings
from agents.models.interface import Model
from agents.usage import Usage
from hypothesis import given, strategies as st
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from stateroom.adapters.openai_agents import StateroomSessions
from stateroom.store import Store, open_store

QUIET = RunConfig(tracing_disabled=True)


def said(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


class Counts(Model):
    """Calls `add` once for each turn, then tells what came of it and how many items it was shown."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        items = [said(input)] if isinstance(input, str) else input
        self.shown.append(len(items))
        last = items[-1]
        if last.get("type") == "function_call_output":
            part = ResponseOutputText(annotations=[], text=f"it is {last['output']}", type="output_text")
            answer: Any = ResponseOutputMessage(
                id="m", content=[part], role="assistant", status="completed", type="message"
            )
        else:
            call_id = f"c{len(items)}"
            answer = ResponseFunctionToolCall(
                call_id=call_id,
                name="add",
                arguments=json.dumps({"number": int(last["content"])}),
                type="function_call",
            )
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def add(number: int) -> int:
    """Add one to a number."""
    return number + 1


async def test_a_runner_goes_on_with_a_conversation_in_another_store_handle(fresh_url: Callable[[str], str]) -> None:
    url, model = fresh_url("sqlite"), Counts()
    agent = Agent(name="adder", model=model, tools=[add])
    for said, answered in (("1", "it is 2"), ("5", "it is 6")):
        async with StateroomSessions.from_url(url) as sessions:
            session = sessions.session("thread")
            assert isinstance(session, Session)
            assert (await Runner.run(agent, said, session=session, run_config=QUIET)).final_output == answered
            items: list[Any] = await session.get_items()
            assert await sessions.session("other").get_items() == []
    kinds = [item.get("type", item.get("role")) for item in items]
    assert kinds == ["user", "function_call", "function_call_output", "message"] * 2
    assert model.shown == [1, 3, 5, 7]


ITEMS = st.lists(st.builds(said, st.text(max_size=5), st.sampled_from(["user", "assistant"])), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add_items"), ITEMS),
        st.tuples(st.just("get_items"), st.none() | st.integers(0, 5)),
        st.tuples(st.just("pop_item")),
        st.tuples(st.just("clear_session")),
    ),
    max_size=12,
)


@given(steps=STEPS, most=st.none() | st.integers(1, 3))
def test_it_does_what_the_sdks_own_session_does(steps: list[Any], most: int | None) -> None:
    async def compare() -> None:
        limit = SessionSettings(limit=most) if most is not None else None
        theirs = SQLiteSession("s", session_settings=limit)
        async with StateroomSessions.from_url("memory://") as sessions:
            ours = sessions.session("s", limit)
            for name, *given in [*steps, ("get_items",)]:
                assert await getattr(ours, name)(*given) == await getattr(theirs, name)(*given), name
        theirs.close()

    asyncio.run(compare())


@pytest.mark.every_store
async def test_two_handles_lose_nothing_that_both_add(store: Store) -> None:
    one, two = (StateroomSessions(store).session("s") for _ in range(2))
    await asyncio.gather(*(handle.add_items([said(f"{n}")]) for n in range(20) for handle in (one, two)))
    assert len(await one.get_items()) == len(await two.get_items()) == 40


async def test_what_is_handed_out_can_be_changed_without_harm(store: Store) -> None:
    session = StateroomSessions(store).session("s")
    await session.add_items([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}])
    [item] = await session.get_items()
    item["content"][0]["text"] = "changed"  # type: ignore[typeddict-item, index]
    assert await session.get_items() == [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]


@pytest.mark.every_store
async def test_a_conversation_ends_when_its_time_is_up_and_can_begin_anew(url: str) -> None:
    now = 1_000.0
    async with open_store(url) as store:
        session = StateroomSessions(store, ttl=60, now=lambda: now).session("s")
        await session.add_items([said("old")])
        now += 61
        assert await session.get_items() == []
        await session.add_items([said("new")])
        assert await session.get_items() == [said("new")]


@pytest.mark.parametrize("name", ["", "a/b", "ü", "x" * 200])
async def test_any_name_will_do(store: Store, name: str) -> None:
    session = StateroomSessions(store).session(name)
    await session.add_items([said("hi")])
    assert await session.get_items() == [said("hi")]
