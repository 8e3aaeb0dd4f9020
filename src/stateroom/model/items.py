"""Responses items: the messages, tool calls and tool results of a conversation, as plain dicts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from stateroom.errors import InvalidArguments
from stateroom.session import result_of, text_of as text_of  # noqa: PLC0414 - it belongs to items for users

Item = dict[str, Any]

ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
"""The prefixes of the ids of a model's items, by type."""

ROLES = ("user", "assistant", "system", "developer")


def message(text: str) -> Item:
    """Create an assistant message."""
    return {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def function_call(name: str, call_id: str, /, **arguments: Any) -> Item:
    """Create a tool call of the assistant."""
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments, ensure_ascii=False),
        "status": "completed",
    }


def function_call_output(call_id: str, output: str) -> Item:
    """Create the result of a tool call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def response_object(id: str, model: str, output: Iterable[Item], tools: Sequence[Item] = (), **fields: Any) -> Item:
    """Create a Responses object for the output of a model, by default a completed one."""
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": 0.0,
        "status": "completed",
        "model": model,
        "output": with_ids(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [*tools],
        **fields,
    }


def with_ids(items: Iterable[Item]) -> list[Item]:
    """The output of a response, with ids for the model's items that lack them.

    The Responses API always has ids, and NeMo Gym refuses messages and reasoning without them.
    """
    return [
        {**item, "id": f"{ID_PREFIXES[item['type']]}_{place}"} if _lacks_id(item) else item
        for place, item in enumerate(items)
    ]


def _lacks_id(item: Item) -> bool:
    is_models = item.get("type") in ID_PREFIXES and item.get("role", "assistant") == "assistant"
    return is_models and item.get("id") is None


def input_items(given: Any) -> list[Item]:
    """The `input` of a request as items; a text is a user message."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or [])


def checked_items(given: str | Item | Sequence[Item]) -> list[Item]:
    """Convert a text, an item or several items to items that can be added to a conversation.

    A message may omit its type. A tool call must be followed by its result, because no agent will run it. Raises
    `InvalidArguments` for anything that is not part of a conversation.
    """
    if not given or not isinstance(given, str | dict | Sequence):
        raise _invalid("must be a text, an item or a list of items, and not empty")
    items = input_items([given] if isinstance(given, dict) else given)
    checked = [_checked_item(item, place) for place, item in enumerate(items)]
    _check_pairs(checked)
    return checked


def kind_of(item: Item) -> str:
    """`call` or `output` for a tool call or its result, otherwise the role or type of the item."""
    kind = str(item.get("type"))
    if "call_id" in item or kind.startswith("function_call"):
        return "output" if kind.endswith("_output") else "call"
    role = item.get("role")
    return role if isinstance(role, str) else kind


def message_text(items: Iterable[Item]) -> str:
    """The text of all messages among some items."""
    return "".join(text_of(item) for item in items if item["type"] == "message")


def with_names(items: Iterable[Item]) -> list[Item]:
    """Items as a model reads them: a message with a user name begins with that name.

    Not every API has a field for the name, and not every chat template shows it.
    """
    return [_prefixed_with_name(item) if item.get("role") == "user" and item.get("name") else item for item in items]


def _prefixed_with_name(item: Item) -> Item:
    start, content = f"{item['name']}: ", item.get("content") or ""
    named = start + content if isinstance(content, str) else [{"type": "input_text", "text": start}, *content]
    return {**{key: value for key, value in item.items() if key != "name"}, "content": named}


def is_content(value: Any) -> bool:
    """Whether a value can be the content of a message: a text, a list of parts, or None."""
    if value is None or isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str | None) for part in value
    )


def is_name(value: Any) -> bool:
    """Whether a value can be the user name of a message: None, or a text that `session.log.checked_user` accepts."""
    return value is None or (isinstance(value, str) and bool(value) and value.isprintable() and ": " not in value)


def last_user_text(conversation: list[Item]) -> str:
    """The text of the newest user message."""
    return next((text_of(item) for item in reversed(conversation) if item.get("role") == "user"), "")


def newest_turn(conversation: list[Item]) -> list[Item]:
    """The items after the newest user message."""
    users = (index for index, item in enumerate(conversation) if item.get("role") == "user")
    return conversation[max(users, default=-1) + 1 :]


def calls_of(response: Any, tool: str) -> list[Item]:
    """The calls of a tool in a Responses object or None. MCP clients write its name as `mcp__SERVER__TOOL`."""
    items = (response or {}).get("output", [])
    names = re.compile(rf"(mcp__.+__)?{re.escape(tool)}")
    return [item for item in items if item.get("type") == "function_call" and names.fullmatch(str(item.get("name")))]


def answers_in(output: Sequence[Item]) -> list[range]:
    """The positions of each answer in a response's output; tool results or user messages separate answers."""
    places: list[range] = []
    start = 0
    for place, item in enumerate([*output, None]):
        if item is not None and is_models(item):
            continue
        if place > start:
            places.append(range(start, place))
        start = place + 1
    return places


def is_models(item: Item) -> bool:
    """Whether an item comes from a model."""
    kind = item.get("type", "message")
    return kind != "function_call_output" and (kind != "message" or item.get("role") == "assistant")


def outputs_of(conversation: list[Item]) -> list[Any]:
    """The decoded results of all tool calls so far; a result that is not JSON stays a text."""
    return [result_of(item) for item in conversation if item.get("type") == "function_call_output"]


def _checked_item(item: Any, place: int) -> Item:
    if not isinstance(item, dict):
        raise _invalid(f"item {place} must be an object, not {item!r:.100}")
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise _invalid(f"the type of item {place} must be a text")
    if kind == "message" and item.get("role") not in ROLES:
        raise _invalid(f"the role of item {place} must be one of {', '.join(ROLES)}")
    if kind == "message" and (item.get("content") is None or not is_content(item["content"])):
        raise _invalid(f"the content of item {place} must be a text or a list of parts")
    if kind == "message" and not is_name(item.get("name")):
        raise _invalid(
            f"the name of item {place} must be a text of printable characters without a colon before a space"
        )
    if kind_of(item) in ("call", "output") and not isinstance(item.get("call_id"), str):
        raise _invalid(f"the call_id of item {place} must be a text")
    return {"type": kind, **item}


def _check_pairs(items: Sequence[Item]) -> None:
    """Raise an error for a call without a result or a result without a call."""
    waiting: list[str] = []
    for item in items:
        kind = kind_of(item)
        if kind == "call":
            waiting.append(item["call_id"])
        elif kind == "output":
            if item["call_id"] not in waiting:
                raise _invalid(f"the result {item['call_id']!r} has no tool call")
            waiting.remove(item["call_id"])
    if waiting:
        raise _invalid(f"the tool call {waiting[0]!r} has no result")


def _invalid(why: str) -> InvalidArguments:
    return InvalidArguments(f"message: {why}", {"message": why})
