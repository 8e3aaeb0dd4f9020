"""Real graphs on the saver: they stop, go on, go back and branch, here and in other processes."""

import asyncio
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

from stateroom.adapters.langgraph import StateroomSaver
from stateroom.cli.app import app
from stateroom.store import Store


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    approved: bool


def talking(saver: StateroomSaver) -> Any:
    """Answers, and asks a person before the last word."""

    def answer(state: Talk) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content}")]}

    def ask(state: Talk) -> dict[str, Any]:
        return {"approved": interrupt("may I?") == "yes"}

    def close(state: Talk) -> dict[str, Any]:
        return {"messages": [AIMessage("done" if state["approved"] else "never mind")]}

    graph = StateGraph(Talk)
    for name, node in (("answer", answer), ("ask", ask), ("close", close)):
        graph.add_node(name, node)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "ask")
    graph.add_edge("ask", "close")
    graph.add_edge("close", END)
    return graph.compile(checkpointer=saver)


class Count(TypedDict):
    seen: Annotated[list[int], add]
    left: int


def counting(saver: StateroomSaver | None) -> Any:
    """Counts down in a loop."""

    def step(state: Count) -> dict[str, Any]:
        return {"seen": [state["left"]], "left": state["left"] - 1}

    graph = StateGraph(Count)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["left"] else END)
    return graph.compile(checkpointer=saver)


class Work(TypedDict):
    counts: list[int]
    seen: Annotated[list[int], add]


def spreading(saver: StateroomSaver) -> Any:
    """Gives each count to a graph of its own, all at once."""
    graph = StateGraph(Work)
    graph.add_node("count", counting(None))
    graph.add_conditional_edges(
        START, lambda state: [Send("count", {"seen": [], "left": count}) for count in state["counts"]], ["count"]
    )
    graph.add_edge("count", END)
    return graph.compile(checkpointer=saver)


def _extend(known: list[str], added: list[list[str]]) -> list[str]:
    return [*known, *(each for some in added for each in some)]


class Lines(TypedDict):
    lines: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=5)]


def noting(saver: StateroomSaver) -> Any:
    """Keeps a list of which LangGraph itself saves only what is added."""

    def note(state: Lines) -> dict[str, Any]:
        return {"lines": [f"line {len(state['lines'])}"]}

    graph = StateGraph(Lines)
    graph.add_node("note", note)
    graph.add_edge(START, "note")
    graph.add_edge("note", END)
    return graph.compile(checkpointer=saver)


CONFIG: Any = {"configurable": {"thread_id": "t"}}


def said(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


@pytest.mark.every_store
async def test_a_graph_waits_for_a_person_and_goes_on_with_another_saver(store: Store) -> None:
    graph = talking(StateroomSaver(store))
    waiting = await graph.ainvoke({"messages": [HumanMessage("hello")], "approved": False}, CONFIG)
    assert [each.value for each in waiting["__interrupt__"]] == ["may I?"]
    elsewhere = talking(StateroomSaver(store))
    assert (await elsewhere.aget_state(CONFIG)).next == ("ask",)
    done = await elsewhere.ainvoke(Command(resume="yes"), CONFIG)
    assert said(done) == ["hello", "answer to hello", "done"]
    assert said((await graph.aget_state(CONFIG)).values) == said(done)


def test_the_log_of_a_thread_is_that_of_its_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rooms.db'}"

    async def begin() -> None:
        async with StateroomSaver.from_url(url) as saver:
            await talking(saver).ainvoke({"messages": [HumanMessage("hello")], "approved": False}, CONFIG)

    asyncio.run(begin())
    assert "put_writes(" in CliRunner().invoke(app, ["sessions", "log", "langgraph:t", "--store", url]).stdout


async def test_a_thread_goes_back_and_takes_another_way(saver: StateroomSaver) -> None:
    graph = talking(saver)
    await graph.ainvoke({"messages": [HumanMessage("hello")], "approved": False}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    history = [state async for state in graph.aget_state_history(CONFIG)]
    assert [state.next for state in history] == [(), ("close",), ("ask",), ("answer",), ("__start__",)]
    assert [len(state.values["messages"]) for state in history] == [3, 2, 2, 1, 0]
    before = history[3]
    changed = await graph.aupdate_state(before.config, {"messages": [HumanMessage("goodbye")]})
    await graph.ainvoke(None, changed)
    done = await graph.ainvoke(Command(resume="no"), CONFIG)
    assert said(done) == ["hello", "goodbye", "answer to goodbye", "never mind"]
    old = await graph.aget_state(history[0].config)
    assert said(old.values) == ["hello", "answer to hello", "done"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_loop_keeps_its_steps(saver: StateroomSaver, durability: Any) -> None:
    graph = counting(saver)
    await graph.ainvoke({"seen": [], "left": 40}, {**CONFIG, "recursion_limit": 100}, durability=durability)
    state = await graph.aget_state(CONFIG)
    assert state.values == {"seen": list(range(40, 0, -1)), "left": 0}
    history = [each async for each in graph.aget_state_history(CONFIG)]
    assert len(history) == (1 if durability == "exit" else 42)
    for each in history:
        assert len(each.values["seen"]) == (40 - each.values["left"] if "left" in each.values else 0)


async def test_graphs_within_a_graph_run_side_by_side(saver: StateroomSaver) -> None:
    counts = list(range(1, 7))
    done = await spreading(saver).ainvoke({"counts": counts, "seen": []}, CONFIG)
    expected = [number for count in counts for number in range(count, 0, -1)]
    assert done["seen"] == expected
    assert (await spreading(saver).aget_state(CONFIG)).values["seen"] == expected


async def test_a_channel_of_which_only_changes_are_saved_is_whole_again(store: Store, saver: StateroomSaver) -> None:
    graph = noting(saver)
    for number in range(12):
        await graph.ainvoke({"lines": [f"input {number}"]}, CONFIG)
    expected = [line for number in range(12) for line in (f"input {number}", f"line {2 * number + 1}")]
    elsewhere = noting(StateroomSaver(store))
    assert (await elsewhere.aget_state(CONFIG)).values["lines"] == expected
    history = [len(state.values.get("lines", [])) async for state in elsewhere.aget_state_history(CONFIG)]
    assert history == sorted(history, reverse=True)
    await saver.acopy_thread("t", "copy")
    await saver.aprune(["t"])
    for thread in ("t", "copy"):
        config: Any = {"configurable": {"thread_id": thread}}
        assert (await elsewhere.aget_state(config)).values["lines"] == expected
    assert len([each async for each in saver.alist(CONFIG)]) < 12
    done = await elsewhere.ainvoke({"lines": ["more"]}, CONFIG)
    assert done["lines"] == [*expected, "more", "line 25"]
