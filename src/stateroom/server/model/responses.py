"""OpenAI's Responses API: requests, and responses as a whole or as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sse_starlette import ServerSentEvent

from stateroom.model import Item, input_items, is_content, message
from stateroom.server.http import wrong_field
from stateroom.server.model.request import ModelRequest, ModelResponse, model_request, objects_in
from stateroom.state import to_json

READ = frozenset({"model", "input", "tools", "stream", "stream_options", "store"})
"""Parameters that the model does not get."""

REFUSED = {
    "previous_response_id": "not supported, because this server does not store responses: send the whole "
    "conversation, or name a `conversation` on a server with /v1/conversations",
    "conversation": "not supported, because this server does not store conversations: send the whole conversation",
    "store": "not supported, because this server does not store responses: omit it, or use a `conversation` on a "
    "server with /v1/conversations",
    "prompt": "not supported, because this server does not store prompts: send the text as `instructions` or `input`",
    "background": "not supported, because this server does not store responses: omit it",
}
"""Parameters that are not supported, and why."""

ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
"""Parameters that a response repeats, and their defaults."""

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Start of the ids of items."""


_EMPTY: dict[str, Item] = {
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
}
"""Items before their content arrives in pieces; other items arrive as a whole."""


def read(body: Mapping[str, Any], before: Sequence[Item] | None = None) -> ModelRequest:
    """The request in a body, which continues the items `before` it, if it names a conversation."""
    for name, reason in REFUSED.items():
        if body.get(name) and not (name == "store" and before is not None):
            raise wrong_field(name, reason)
    before = before or ()
    given = body.get("input")
    if (not isinstance(given, str | list) or not given) and not (given is None and before):
        raise wrong_field("input", "should be a text, or a list of items")
    items = [*before, *checked_items(input_items(given), "input")]
    tools = objects_in(body, "tools")
    for tool in tools:
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise wrong_field("tools", 'should be functions with a name, such as {"type": "function", "name": "add"}')
    return model_request(body, items, tools, {name: value for name, value in body.items() if name not in READ})


def whole(made: ModelResponse) -> dict[str, Any]:
    """The response."""
    ended: dict[str, Any]
    if made.answer.truncated:
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        ended = {"status": "completed", "incomplete_details": None}
    return {**_head(made), **ended, "output": _output(made), "usage": made.usage.plain()}


def events(made: ModelResponse) -> Iterator[ServerSentEvent]:
    """The response as server-sent events."""
    for number, data in enumerate(_events(made)):
        yield ServerSentEvent(to_json({**data, "sequence_number": number}).decode(), event=data["type"], sep="\n")


def _events(made: ModelResponse) -> Iterator[dict[str, Any]]:
    begun = {**_head(made), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    response = whole(made)
    for index, item in enumerate(response["output"]):
        yield from _item_events(item, index)
    yield {"type": f"response.{response['status']}", "response": response}


def _item_events(item: Item, index: int) -> Iterator[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, **_EMPTY.get(item["type"], {})},
    }
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **place, "name": item["name"], "arguments": arguments}
    elif item["type"] == "message":
        for number, part in enumerate(item["content"]):
            yield from _part_events(part, {**place, "content_index": number})
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: Item, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a part of a message: a text or a refusal, in pieces; other parts arrive as a whole."""
    refuses = part.get("type") == "refusal"
    field, kind = ("refusal", "refusal") if refuses else ("text", "output_text")
    extra: dict[str, Any] = {} if refuses else {"logprobs": []}
    if field not in part:
        yield {"type": "response.content_part.added", **place, "part": part}
        yield {"type": "response.content_part.done", **place, "part": part}
        return
    yield {"type": "response.content_part.added", **place, "part": {**part, field: ""}}
    yield {"type": f"response.{kind}.delta", **place, **extra, "delta": part[field]}
    yield {"type": f"response.{kind}.done", **place, **extra, field: part[field]}
    yield {"type": "response.content_part.done", **place, "part": part}


def _head(made: ModelResponse) -> dict[str, Any]:
    body = made.asked.body
    echoed = {name: default if body.get(name) is None else body[name] for name, default in ECHOED.items()}
    return {
        "id": f"resp_{made.id}",
        "object": "response",
        "created_at": int(made.at),
        "model": made.model,
        "error": None,
        "store": False,
        **({"conversation": {"id": made.conversation}} if made.conversation else {}),
        **echoed,
    }


def _output(made: ModelResponse) -> list[Item]:
    """The items as clients expect them, with the model's ids if it gives any; in a conversation, with those there."""
    items = [shown(item, made.id, made.first + place) for place, item in enumerate(made.answer.items)]
    if made.conversation is not None:
        return items
    return [
        {**proper, "id": item.get("id") or proper["id"]} for proper, item in zip(items, made.answer.items, strict=True)
    ]


def item_id(item: Item, batch: str, place: int) -> str:
    """The id of an item, by its place in what was made together."""
    return f"{PREFIXES.get(item['type'], 'item')}_{batch}_{place}"


def shown(item: Item, batch: str, place: int) -> Item:
    """An item as clients expect it: with an id, content as a list of parts, and arguments as a text."""
    proper = {"status": "completed", **item, "id": item_id(item, batch, place)}
    if item["type"] == "message":
        role, content = item.get("role") or "assistant", item.get("content")
        if not isinstance(content, list):
            text = message(content or "")["content"]
            content = text if role == "assistant" else [{"type": "input_text", "text": content or ""}]
        proper |= {"role": role, "content": content}
    elif item["type"] == "function_call" and not isinstance(item["arguments"], str):
        proper["arguments"] = to_json(item["arguments"]).decode()
    return proper


def checked_items(items: Sequence[Any], field: str) -> list[Item]:
    """The items in a field of a request."""
    return [_item(item, f"{field}[{place}]") for place, item in enumerate(items)]


def _item(item: Any, where: str) -> Item:
    """An item of the input, checked."""
    if not isinstance(item, dict):
        raise wrong_field(where, "should be an object")
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise wrong_field(where, "should have a type, such as message")
    if kind == "message" and not (isinstance(item.get("role"), str) and _is_content(item.get("content"))):
        raise wrong_field(where, "a message should have a role, and a text or a list of parts as its content")
    if kind in ("function_call", "function_call_output") and not isinstance(item.get("call_id"), str):
        raise wrong_field(where, f"a {kind} should have a call_id")
    if kind == "function_call" and not isinstance(item.get("name"), str):
        raise wrong_field(where, "a function_call should have a name")
    if kind == "function_call_output" and not _is_content(item.get("output")):
        raise wrong_field(where, "a function_call_output should have an output")
    if kind == "item_reference":
        raise wrong_field(where, "should be the item itself: references are not supported")
    return {"type": kind, **item}


def _is_content(value: Any) -> bool:
    return value is not None and is_content(value)
