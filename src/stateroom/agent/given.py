"""What somebody gives a conversation: a text, an item or several, as items that fit into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateroom.agent.units import kind_of
from stateroom.errors import InvalidArguments
from stateroom.model import Item, input_items
from stateroom.model.items import is_content

ROLES = ("user", "assistant", "system", "developer")


def given_items(given: str | Item | Sequence[Item]) -> list[Item]:
    """What was given, as items; `InvalidArguments` if it is no part of a conversation.

    A message may leave out its type. A tool call comes with its result, after it: nobody is going to make it.
    """
    if not given or not isinstance(given, str | dict | Sequence):
        raise _wrong("should be a text, an item or a list of items, and not be empty")
    items = input_items([given] if isinstance(given, dict) else given)
    found = [_item(item, place) for place, item in enumerate(items)]
    _refuse_halves(found)
    return found


def _item(item: Any, place: int) -> Item:
    if not isinstance(item, dict):
        raise _wrong(f"item {place} should be an object, not {item!r:.100}")
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise _wrong(f"the type of item {place} should be a text")
    if kind == "message" and item.get("role") not in ROLES:
        raise _wrong(f"the role of item {place} should be one of {', '.join(ROLES)}")
    if kind == "message" and (item.get("content") is None or not is_content(item["content"])):
        raise _wrong(f"the content of item {place} should be a text, or a list of parts")
    if kind_of(item) in ("call", "output") and not isinstance(item.get("call_id"), str):
        raise _wrong(f"the call_id of item {place} should be a text")
    return {"type": kind, **item}


def _refuse_halves(items: Sequence[Item]) -> None:
    """Raise if a call has no result, or the reverse."""
    waiting: list[str] = []
    for item in items:
        kind = kind_of(item)
        if kind == "call":
            waiting.append(item["call_id"])
        elif kind == "output":
            if item["call_id"] not in waiting:
                raise _wrong(f"there is no tool call for the result of {item['call_id']!r}")
            waiting.remove(item["call_id"])
    if waiting:
        raise _wrong(f"the tool call {waiting[0]!r} has no result")


def _wrong(why: str) -> InvalidArguments:
    return InvalidArguments(f"message: {why}", {"message": why})
