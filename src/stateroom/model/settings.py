"""Request parameters and token usage: Responses to Chat Completions, and back.

Most parameters are the same in both, and unknown ones pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateroom.model.model import Usage

ONLY_RESPONSES = frozenset({"include", "truncation"})
"""Parameters of Responses that have no meaning in chat, and can be left out."""


def chat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of Responses as parameters of chat; `instructions` are a message there, and stay."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        match name:
            case "max_output_tokens":
                found["max_tokens"] = value
            case "reasoning" if isinstance(value, dict):
                found |= _renamed(value, "reasoning", {"effort": "reasoning_effort"})
            case "text" if isinstance(value, dict):
                found |= _renamed(value, "text", {"format": "response_format", "verbosity": "verbosity"})
                if "response_format" in found:
                    found["response_format"] = _nested(found["response_format"], "json_schema")
            case "tool_choice":
                found["tool_choice"] = _chat_choice(value)
            case "top_logprobs":
                found |= {"logprobs": True, "top_logprobs": value}
            case _ if name not in ONLY_RESPONSES:
                found[name] = value
    return found


def responses_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of chat as parameters of Responses."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        match name:
            case "max_tokens" | "max_completion_tokens":
                found["max_output_tokens"] = value
            case "reasoning_effort":
                found["reasoning"] = {**found.get("reasoning", {}), "effort": value}
            case "reasoning" if isinstance(value, dict):
                found["reasoning"] = {**value, **found.get("reasoning", {})}
            case "response_format":
                found["text"] = {**found.get("text", {}), "format": _flat(value, "json_schema")}
            case "verbosity":
                found["text"] = {**found.get("text", {}), "verbosity": value}
            case "text" if isinstance(value, dict):
                found["text"] = {**value, **found.get("text", {})}
            case "tool_choice":
                found["tool_choice"] = _responses_choice(value)
            case "logprobs" if parameters.get("top_logprobs") is not None:
                pass  # implied by top_logprobs
            case _:
                found[name] = value
    return found


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
    """Token counts from the `usage` of either API; None if there is none."""
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
    """An object in a server's reply; empty if it is not there, or something else is."""
    value = reply.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _renamed(value: dict[str, Any], name: str, names: dict[str, str]) -> dict[str, Any]:
    """Some keys of an object under their own names in chat, and the rest under the old name."""
    rest = {key: of_it for key, of_it in value.items() if key not in names}
    found = {names[key]: of_it for key, of_it in value.items() if key in names}
    return found | ({name: rest} if rest else {})


def _nested(value: Any, kind: str) -> Any:
    """An object with its fields under the name of its type, as in chat."""
    if not isinstance(value, dict) or value.get("type") != kind:
        return value
    return {"type": kind, kind: {key: of_it for key, of_it in value.items() if key != "type"}}


def _flat(value: Any, kind: str) -> Any:
    """An object with its fields next to its type, as in Responses."""
    if not isinstance(value, dict) or value.get("type") != kind or not isinstance(value.get(kind), dict):
        return value
    return {"type": kind, **value[kind]}


def _chat_choice(choice: Any) -> Any:
    found = _nested(_nested(choice, "function"), "allowed_tools")
    if isinstance(found, dict) and "allowed_tools" in found:
        allowed = found["allowed_tools"]
        if isinstance(allowed.get("tools"), list):
            allowed["tools"] = [_nested(tool, "function") for tool in allowed["tools"]]
    return found


def _responses_choice(choice: Any) -> Any:
    found = _flat(_flat(choice, "function"), "allowed_tools")
    if isinstance(found, dict) and found.get("type") == "allowed_tools" and isinstance(found.get("tools"), list):
        found = {**found, "tools": [_flat(tool, "function") for tool in found["tools"]]}
    return found
