"""Real graphs on the saver: they stop, go on, go back and branch, here and in other processes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command
from typer.testing import CliRunner

from stateroom.adapters.langgraph import StateroomSaver
from stateroom.cli.app import app
from stateroom.store import Store
from tests.adapters.graphs import counting, noting, spreading, talking

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
