"""Responses items: the messages, tool calls and tool results that a conversation is made of, as plain dicts."""

from __future__ import annotations

import json
from typing import Any

Item = dict[str, Any]


def message(text: str) -> Item:
    """Something that the assistant says."""
    return {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def function_call(name: str, call_id: str, **arguments: Any) -> Item:
    """A tool call that the assistant makes."""
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments, ensure_ascii=False),
        "status": "completed",
    }


def function_call_output(call_id: str, output: str) -> Item:
    """What a tool call came to."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def input_items(given: Any) -> list[Item]:
    """The `input` of a request as items: a text is a message of the user's."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or [])


def text_of(item: Item) -> str:
    """The text of a message."""
    content = item.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def is_content(value: Any) -> bool:
    """Whether something can be the content of a message: a text, a list of parts, or nothing."""
    if value is None or isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str | None) for part in value
    )


def last_user_text(conversation: list[Item]) -> str:
    """What the user said last."""
    return next((text_of(item) for item in reversed(conversation) if item.get("role") == "user"), "")


def outputs_of(conversation: list[Item]) -> list[Any]:
    """The results of all tool calls so far, decoded; a result that is not JSON stays a text."""
    return [_decoded(item["output"]) for item in conversation if item.get("type") == "function_call_output"]


def _decoded(output: Any) -> Any:
    try:
        return json.loads(output)
    except (ValueError, TypeError):
        return output
