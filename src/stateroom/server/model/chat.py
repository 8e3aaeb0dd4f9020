"""Chat Completions: what a client asks, and the completion that it gets, whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stateroom.errors import ModelFailed
from stateroom.model import Answer, Item, chat_usage, completion_message, items_of, responses_settings, responses_tools
from stateroom.server.faults import wrong_field
from stateroom.server.model.asked import Asked, a_list, asked
from stateroom.server.model.made import Made
from stateroom.state import to_json

READ = frozenset({"model", "messages", "tools", "stream", "stream_options", "seed", "n"})
"""Parameters that are not the model's business."""


def read(body: Mapping[str, Any]) -> Asked:
    """The request in a body."""
    messages, tools = a_list(body, "messages"), a_list(body, "tools")
    if not messages:
        raise wrong_field("messages", "should have a message")
    if body.get("n") not in (None, 1):
        raise wrong_field("n", "should be 1: ask again for another answer")
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong_field(
                "tools",
                'should be functions with a name, for example {"type": "function", "function": {"name": "add"}}',
            )
    items = _converted(items_of, messages, "messages")
    functions = _converted(responses_tools, tools, "tools")
    settings = responses_settings({name: value for name, value in body.items() if name not in READ})
    return asked(body, items, functions, settings)


def _converted(convert: Callable[[list[Item]], list[Item]], given: list[Item], field: str) -> list[Item]:
    """What was given in a field, as Responses has it."""
    try:
        return convert(given)
    except ModelFailed as error:
        raise wrong_field(field, str(error)) from None


def whole(made: Made) -> dict[str, Any]:
    """The completion."""
    message = completion_message(made.answer.items)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _why_it_ended(made.answer)}
    return {**_head(made, "chat.completion"), "choices": [choice], "usage": chat_usage(made.usage)}


def events(made: Made) -> Iterator[bytes]:
    """The same as server-sent events: who speaks, what is said, the calls one by one, and the end."""
    message = completion_message(made.answer.items)
    calls = message.pop("tool_calls", ())
    said = {name: value for name, value in message.items() if value is not None and name != "role"}
    deltas = [{"role": "assistant"}, *([said] if said else [])]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    for delta in deltas:
        yield _chunk(made, delta)
    yield _chunk(made, {}, _why_it_ended(made.answer))
    options = made.asked.body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield _event({**_head(made, "chat.completion.chunk"), "choices": [], "usage": chat_usage(made.usage)})
    yield b"data: [DONE]\n\n"


def _chunk(made: Made, delta: dict[str, Any], ended: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ended}
    return _event({**_head(made, "chat.completion.chunk"), "choices": [choice]})


def _head(made: Made, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{made.id}", "object": kind, "created": int(made.at), "model": made.model}


def _why_it_ended(answer: Answer) -> str:
    if answer.truncated:
        return "length"
    return "tool_calls" if any(item["type"] == "function_call" for item in answer.items) else "stop"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"
