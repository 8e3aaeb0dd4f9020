"""An environment that changes every kind of container, and what its tools do to plain data."""

from __future__ import annotations

from random import Random
from typing import Any

from pydantic import BaseModel

from stateroom import Environment, State, ToolError, tool


class Item(BaseModel):
    name: str
    tags: list[str] = []


class Shelf(State):
    total: int = 0
    items: dict[str, Item] = {}
    order: list[int] = []
    marks: set[str] = set()
    luck: list[int] = []


class ShelfEnvironment(Environment[Shelf]):
    """Changes every kind of container."""

    @tool
    def put(self, state: Shelf, key: str, name: str) -> int:
        """Put an item in."""
        state.items[key] = Item(name=name)
        state.total += 1
        return state.total

    @tool
    def tag(self, state: Shelf, key: str, tag: str) -> list[str]:
        """Tag an item, deep inside."""
        if key not in state.items:
            raise ToolError("no such item")
        state.items[key].tags.append(tag)
        return state.items[key].tags

    @tool
    def drop(self, state: Shelf, key: str) -> None:
        """Take an item out."""
        state.marks.add(key)
        state.items.pop(key, None)

    @tool
    def shuffle(self, state: Shelf, number: int) -> list[int]:
        """Insert a number, and turn the order round."""
        state.order.insert(0, number)
        state.order.reverse()
        return state.order

    @tool
    def roll(self, state: Shelf, rng: Random) -> int:
        """Keep a number that luck decides."""
        state.luck.append(rng.randrange(10**6))
        return state.luck[-1]

    def verify(self, state: Shelf) -> float:
        return float(state.total)


def expect(state: dict[str, Any], name: str, given: dict[str, Any], roll: int) -> tuple[bool, Any]:
    """Do to plain data what the tool does to the state."""
    if name == "put":
        state["items"][given["key"]] = {"name": given["name"], "tags": []}
        state["total"] += 1
        return True, state["total"]
    if name == "tag":
        if given["key"] not in state["items"]:
            return False, None
        state["items"][given["key"]]["tags"].append(given["tag"])
        return True, list(state["items"][given["key"]]["tags"])
    if name == "drop":
        state["marks"].add(given["key"])
        state["items"].pop(given["key"], None)
        return True, None
    if name == "shuffle":
        state["order"].insert(0, given["number"])
        state["order"].reverse()
        return True, list(state["order"])
    state["luck"].append(roll)
    return True, roll
