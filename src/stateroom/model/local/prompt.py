"""The prompt: a conversation of items as the plain one of system, user and assistant that every model knows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from stateroom.model.items import Item, text_of
from stateroom.model.local.form import Form, as_call, as_message


def messages_for(items: Iterable[Item], form: Form, instructions: str = "") -> list[dict[str, str]]:
    """The messages of a request. The speakers take turns in them: some chat templates know nothing else."""
    system = [text for text in (instructions, "" if form.free else form.instructions()) if text]
    turns: list[dict[str, str]] = []
    for item in items:
        role, text = _said(item, form)
        if role == "system":
            system.append(text)
        elif text and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n{text}"
        elif text:
            turns.append({"role": role, "content": text})
    start = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*start, *turns]


def _said(item: Item, form: Form) -> tuple[str, str]:
    """Who says an item, and what; reasoning is not repeated."""
    match item.get("type", "message"):
        case "function_call":
            return "assistant", as_call(item.get("name"), _arguments(item.get("arguments")))
        case "function_call_output":
            return "user", f"Result: {text_of({'content': item.get('output')})}"
        case "reasoning":
            return "assistant", ""
    if item.get("role") == "assistant":
        return "assistant", text_of(item) if form.free else as_message(text_of(item))
    return ("user" if item.get("role") == "user" else "system"), text_of(item)


def _arguments(given: Any) -> Any:
    try:
        return json.loads(given or "{}")
    except (ValueError, TypeError):
        return given
