"""OpenAI's Chat Completions API: requests, and completions as a whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sse_starlette import ServerSentEvent

from stateroom.errors import ModelFailed
from stateroom.model import Answer, Item, chat_usage, completion_message, items_of, responses_settings, responses_tools
from stateroom.server.http import wrong_field
from stateroom.server.model.request import ModelRequest, ModelResponse, model_request, objects_in
from stateroom.state import to_json

READ = frozenset({"model", "messages", "tools", "stream", "stream_options", "seed", "n"})
"""Parameters that the model does not get."""


def read(body: Mapping[str, Any]) -> ModelRequest:
    """The request in a body."""
    messages, tools = objects_in(body, "messages"), objects_in(body, "tools")
    if not messages:
        raise wrong_field("messages", "should have a message")
    if body.get("n") not in (None, 1):
        raise wrong_field("n", "should be 1; send another request for another answer")
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
    return model_request(body, items, functions, settings)


def _converted(convert: Callable[[list[Item]], list[Item]], given: list[Item], field: str) -> list[Item]:
    """A field in the form of the Responses API."""
    try:
        return convert(given)
    except ModelFailed as error:
        raise wrong_field(field, str(error)) from None


def whole(made: ModelResponse) -> dict[str, Any]:
    """The completion."""
    message = completion_message(made.answer.items)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(made.answer)}
    return {**_head(made, "chat.completion"), "choices": [choice], "usage": chat_usage(made.usage)}


def events(made: ModelResponse) -> Iterator[ServerSentEvent]:
    """The completion as server-sent events: the role, the text, each tool call, and the end."""
    message = completion_message(made.answer.items)
    calls = message.pop("tool_calls", ())
    content = {name: value for name, value in message.items() if value is not None and name != "role"}
    deltas = [{"role": "assistant"}, *([content] if content else [])]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    for delta in deltas:
        yield _chunk(made, delta)
    yield _chunk(made, {}, _finish_reason(made.answer))
    options = made.asked.body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield _event({**_head(made, "chat.completion.chunk"), "choices": [], "usage": chat_usage(made.usage)})
    yield ServerSentEvent("[DONE]", sep="\n")


def _chunk(made: ModelResponse, delta: dict[str, Any], ended: str | None = None) -> ServerSentEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ended}
    return _event({**_head(made, "chat.completion.chunk"), "choices": [choice]})


def _head(made: ModelResponse, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{made.id}", "object": kind, "created": int(made.at), "model": made.model}


def _finish_reason(answer: Answer) -> str:
    if answer.truncated:
        return "length"
    return "tool_calls" if any(item["type"] == "function_call" for item in answer.items) else "stop"


def _event(data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(to_json(data).decode(), sep="\n")
