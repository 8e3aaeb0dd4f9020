"""The Responses object in a request: what it must look like before an author's verifier sees it."""

from __future__ import annotations

from typing import Any

from stateroom.model import text_of
from stateroom.server.faults import wrong_field


def checked_response(body: dict[str, Any]) -> dict[str, Any] | None:
    """The `response` of a body, if there is one."""
    response = body.get("response")
    if response is None:
        return None
    if not isinstance(response, dict):
        raise wrong_field("response", "should be a Responses object")
    output = response.get("output", [])
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise wrong_field("response.output", "should be a list of items")
    for call in calls_of(response):
        if not isinstance(call.get("call_id"), str) or not isinstance(call.get("name"), str):
            raise wrong_field("response.output", "a function_call should have a call_id and a name")
        if not isinstance(call.get("arguments"), str | None):
            raise wrong_field("response.output", "the arguments of a function_call should be JSON as a text")
    return response


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls in a response."""
    return [item for item in response.get("output", ()) if item.get("type") == "function_call"]


def said_in(response: dict[str, Any]) -> str:
    """The text of the messages in a response."""
    try:
        return "".join(text_of(item) for item in response.get("output", ()) if item.get("type") == "message")
    except (AttributeError, TypeError):
        problem = "the content of a message should be a text, or a list of parts with a text each"
        raise wrong_field("response.output", problem) from None
