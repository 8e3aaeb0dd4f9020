"""Prompts for local models: tools as instructions and a JSON schema, and a conversation as plain messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stateroom.errors import ModelFailed
from stateroom.model.items import Item, function_call, message, text_of, with_names
from stateroom.session import parsed

Schema = dict[str, Any]

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""JSON on one line, to save tokens. Parts of a schema that cannot be enforced are ignored."""


class AnswerFormat:
    """The format of an answer: a JSON object that is a tool call, a message, or either."""

    def __init__(self, tools: Sequence[Item], choice: Any = None) -> None:
        """`choice` is the `tool_choice` of a request."""
        self.tools = self._described_tools = [tool for tool in tools if tool.get("type") == "function"]
        self.may_speak = choice in (None, "auto", "none")
        if choice == "none":
            self.tools = []
        elif isinstance(choice, Mapping) and choice.get("type") == "function":
            self.tools = [tool for tool in self.tools if tool["name"] == choice.get("name")]
        elif not self.may_speak and choice != "required":
            raise ModelFailed(f"local models do not support the tool_choice {choice!r:.200}")
        if not self.tools and not self.may_speak:
            raise ModelFailed(f"the tool_choice {choice!r:.200} does not match any tool")

    @property
    def free(self) -> bool:
        """Whether no tool can be called, so an answer is plain text."""
        return not self.tools

    def schema(self) -> Schema:
        """The JSON schema of an answer."""
        definitions: Schema = {}
        ways = []
        for tool in self.tools:
            parameters = _moved(tool.get("parameters") or {"type": "object"}, tool["name"])
            for place in ("$defs", "definitions"):
                schemas = parameters.pop(place, {})
                definitions |= {f"{tool['name']}.{name}": below for name, below in schemas.items()}
            ways.append(_object({"tool": {"const": tool["name"]}, "arguments": parameters}))
        if self.may_speak:
            ways.append(_object({"message": {"type": "string"}}))
        return {"x-guidance": _COMPACT, "$defs": definitions, "anyOf": ways}

    def instructions(self) -> str:
        """The instructions for the model, independent of the choice, so prompts share a prefix."""
        lines = [
            "You solve the user's task step by step with tools. Each answer is one JSON object: one tool call, or a "
            "message.",
            "",
            "Tools:",
            *(line for tool in self._described_tools for line in _described(tool)),
            "",
            "To call a tool, answer:",
            *(_as_call(tool["name"], _outline(tool.get("parameters") or {})) for tool in self._described_tools),
            "When no call is left to make, answer:",
            _as_message("<string>"),
        ]
        return "\n".join(lines)

    def items(self, text: str, call_id: str) -> list[Item] | None:
        """The items of an answer; None if it is incomplete or has another format."""
        if self.free:
            return [message(text)]
        match parsed(text):
            case {"message": str(said)}:
                return [message(said)]
            case {"tool": str(name), "arguments": dict(arguments)}:
                return [{**function_call(name, call_id), "arguments": json.dumps(arguments, ensure_ascii=False)}]
        return None


def messages_for(items: Iterable[Item], form: AnswerFormat, instructions: str = "") -> list[dict[str, str]]:
    """The messages of a request. User and assistant alternate, as some chat templates require."""
    system = [text for text in (instructions, "" if form.free else form.instructions()) if text]
    turns: list[dict[str, str]] = []
    for item in with_names(items):
        role, text = _said(item, form)
        if role == "system":
            system.append(text)
        elif text and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n{text}"
        elif text:
            turns.append({"role": role, "content": text})
    start = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*start, *turns]


def _as_call(name: Any, arguments: Any) -> str:
    """A call in the format of an answer."""
    return json.dumps({"tool": name, "arguments": arguments}, ensure_ascii=False)


def _as_message(text: str) -> str:
    """A message in the format of an answer."""
    return json.dumps({"message": text}, ensure_ascii=False)


def _said(item: Item, form: AnswerFormat) -> tuple[str, str]:
    """The role and the text of an item, without reasoning."""
    match item.get("type", "message"):
        case "function_call":
            return "assistant", _as_call(item.get("name"), parsed(item.get("arguments") or "{}"))
        case "function_call_output":
            return "user", f"Result: {text_of({'content': item.get('output')})}"
        case "reasoning":
            return "assistant", ""
    if item.get("role") == "assistant":
        return "assistant", text_of(item) if form.free else _as_message(text_of(item))
    return ("user" if item.get("role") == "user" else "system"), text_of(item)


def _described(tool: Item) -> Iterator[str]:
    """The description of a tool and its parameters."""
    yield f"- {tool['name']}: {tool.get('description') or 'no description'}"
    for name, schema in (tool.get("parameters") or {}).get("properties", {}).items():
        if schema.get("description"):
            yield f"  {name}: {schema['description']}"


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _moved(schema: Any, tool: str) -> Any:
    """A copy of a tool's schema, with references to the definitions of the whole schema."""
    if isinstance(schema, list):
        return [_moved(part, tool) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, tool) for key, value in schema.items()}
    if isinstance(schema.get("$ref"), str):
        moved["$ref"] = f"#/$defs/{tool}.{schema['$ref'].rpartition('/')[2]}"
    return moved


def _outline(schema: Schema) -> Any:
    """An outline of a value: `{"count": "<integer>"}`."""
    ways = [way for way in schema.get("anyOf") or schema.get("oneOf") or () if way.get("type") != "null"]
    if ways:
        return _outline(ways[0])
    if "enum" in schema:
        return f"<{' or '.join(map(str, schema['enum']))}>"
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: _outline(below) for name, below in schema.get("properties", {}).items()}
    if kind == "array":
        return [_outline(schema.get("items") or {})]
    if "const" in schema:
        return schema["const"]
    return f"<{kind or schema.get('$ref', 'value').rpartition('/')[2]}>"
