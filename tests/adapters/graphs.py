"""Graphs of LangGraph's, as its users write them."""

from operator import add
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    approved: bool


def talking(saver: BaseCheckpointSaver[Any]) -> Any:
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


def counting(saver: BaseCheckpointSaver[Any] | bool | None) -> Any:
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


def spreading(saver: BaseCheckpointSaver[Any]) -> Any:
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


def noting(saver: BaseCheckpointSaver[Any]) -> Any:
    """Keeps a list of which LangGraph itself saves only what is added."""

    def note(state: Lines) -> dict[str, Any]:
        return {"lines": [f"line {len(state['lines'])}"]}

    graph = StateGraph(Lines)
    graph.add_node("note", note)
    graph.add_edge(START, "note")
    graph.add_edge("note", END)
    return graph.compile(checkpointer=saver)
