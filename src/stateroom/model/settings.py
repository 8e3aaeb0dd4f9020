"""Convert request parameters and token usage between Responses and Chat Completions.

Most parameters are the same in both, and unknown ones pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateroom.model.model import Usage

ONLY_RESPONSES = frozenset({"include", "truncation"})
"""Parameters of Responses without a meaning in chat, which are dropped."""


def chat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters of Responses to chat; `instructions` stay, since they are a message in chat."""
    chat: dict[str, Any] = {}
    for name, value in settings.items():
        match name:
            case "max_output_tokens":
                chat["max_tokens"] = value
            case "reasoning" if isinstance(value, dict):
                chat |= _renamed(value, "reasoning", {"effort": "reasoning_effort"})
            case "text" if isinstance(value, dict):
                chat |= _renamed(value, "text", {"format": "response_format", "verbosity": "verbosity"})
                if "response_format" in chat:
                    chat["response_format"] = _nested(chat["response_format"], "json_schema")
            case "tool_choice":
                chat["tool_choice"] = _chat_choice(value)
            case "top_logprobs":
                chat |= {"logprobs": True, "top_logprobs": value}
            case _ if name not in ONLY_RESPONSES:
                chat[name] = value
    return chat


def responses_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters of chat to Responses."""
    responses: dict[str, Any] = {}
    for name, value in parameters.items():
        match name:
            case "max_tokens" | "max_completion_tokens":
                responses["max_output_tokens"] = value
            case "reasoning_effort":
                responses.setdefault("reasoning", {})["effort"] = value
            case "reasoning" if isinstance(value, dict):
                responses["reasoning"] = {**value, **responses.get("reasoning", {})}
            case "response_format":
                responses.setdefault("text", {})["format"] = _flat(value, "json_schema")
            case "verbosity":
                responses.setdefault("text", {})["verbosity"] = value
            case "text" if isinstance(value, dict):
                responses["text"] = {**value, **responses.get("text", {})}
            case "tool_choice":
                responses["tool_choice"] = _responses_choice(value)
            case "logprobs" if parameters.get("top_logprobs") is not None:
                pass  # implied by top_logprobs
            case _:
                responses[name] = value
    return responses


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Token counts as chat reports them."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def usage_of(reported: Any) -> Usage | None:
    """Token counts from the `usage` of either API, if any."""
    if not isinstance(reported, dict):
        return None
    into, out = ("prompt", "completion") if "prompt_tokens" in reported else ("input", "output")
    return Usage(
        _count(reported.get(f"{into}_tokens")),
        _count(reported.get(f"{out}_tokens")),
        _count(object_at(reported, f"{into}_tokens_details").get("cached_tokens")),
        _count(object_at(reported, f"{out}_tokens_details").get("reasoning_tokens")),
    )


def object_at(reply: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in a server's reply; empty if the field is missing or not an object."""
    value = reply.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _renamed(value: dict[str, Any], name: str, names: dict[str, str]) -> dict[str, Any]:
    """Move some keys of an object to their names in chat, and keep the rest under the old name."""
    rest = {key: field for key, field in value.items() if key not in names}
    renamed = {names[key]: field for key, field in value.items() if key in names}
    return renamed | ({name: rest} if rest else {})


def _nested(value: Any, kind: str) -> Any:
    """An object with its fields under the name of its type, as in chat."""
    if not isinstance(value, dict) or value.get("type") != kind:
        return value
    return {"type": kind, kind: {key: field for key, field in value.items() if key != "type"}}


def _flat(value: Any, kind: str) -> Any:
    """An object with its fields next to its type, as in Responses."""
    if not isinstance(value, dict) or value.get("type") != kind or not isinstance(value.get(kind), dict):
        return value
    return {"type": kind, **value[kind]}


def _chat_choice(choice: Any) -> Any:
    nested = _nested(_nested(choice, "function"), "allowed_tools")
    if isinstance(nested, dict) and "allowed_tools" in nested:
        allowed = nested["allowed_tools"]
        if isinstance(allowed.get("tools"), list):
            allowed["tools"] = [_nested(tool, "function") for tool in allowed["tools"]]
    return nested


def _responses_choice(choice: Any) -> Any:
    flat = _flat(_flat(choice, "function"), "allowed_tools")
    if isinstance(flat, dict) and flat.get("type") == "allowed_tools" and isinstance(flat.get("tools"), list):
        flat = {**flat, "tools": [_flat(tool, "function") for tool in flat["tools"]]}
    return flat
