"""The form of an answer: a JSON object that calls a tool or says something, for models that know nothing of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stateroom.errors import ModelFailed
from stateroom.model.items import Item, function_call, message

Schema = dict[str, Any]

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""How the JSON is written: on one line, which saves tokens. What a schema asks that cannot be enforced is let go."""


class Form:
    """What an answer may be: a call of one of some tools, a message, or either."""

    def __init__(self, tools: Sequence[Item], choice: Any = None) -> None:
        """`choice` is the `tool_choice` of a request."""
        self.tools = [tool for tool in tools if tool.get("type") == "function"]
        self.may_speak = choice in (None, "auto", "none")
        if choice == "none":
            self.tools = []
        elif isinstance(choice, Mapping) and choice.get("type") == "function":
            self.tools = [tool for tool in self.tools if tool["name"] == choice.get("name")]
        elif not self.may_speak and choice != "required":
            raise ModelFailed(f"a local model does not know the tool_choice {choice!r:.200}")
        if not self.tools and not self.may_speak:
            raise ModelFailed(f"there is no tool for the tool_choice {choice!r:.200}")

    @property
    def free(self) -> bool:
        """True when there is nothing to choose from, so that an answer is a plain text."""
        return not self.tools

    def schema(self) -> Schema:
        """The JSON schema that an answer keeps to."""
        definitions: Schema = {}
        ways = []
        for tool in self.tools:
            parameters = _moved(tool.get("parameters") or {"type": "object"}, tool["name"])
            for place in ("$defs", "definitions"):
                found = parameters.pop(place, {})
                definitions |= {f"{tool['name']}.{name}": below for name, below in found.items()}
            ways.append(_object({"tool": {"const": tool["name"]}, "arguments": parameters}))
        if self.may_speak:
            ways.append(_object({"message": {"type": "string"}}))
        return {"x-guidance": _COMPACT, "$defs": definitions, "anyOf": ways}

    def instructions(self) -> str:
        """What the model is told of it."""
        lines = [
            "You solve the user's task step by step with tools. Each answer is one JSON object: one tool call"
            + (", or a message." if self.may_speak else "."),
            "",
            "Tools:",
            *(line for tool in self.tools for line in _told(tool)),
            "",
            "To call a tool, answer:",
            *(as_call(tool["name"], _outline(tool.get("parameters") or {})) for tool in self.tools),
        ]
        if self.may_speak:
            lines += ["When no call is left to make, answer:", as_message("<string>")]
        return "\n".join(lines)

    def items(self, text: str, call_id: str) -> list[Item] | None:
        """The items of an answer; None if it does not keep to the form, or breaks off."""
        if self.free:
            return [message(text)]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match found:
            case {"message": str(said)}:
                return [message(said)]
            case {"tool": str(name), "arguments": dict(arguments)}:
                return [{**function_call(name, call_id), "arguments": json.dumps(arguments, ensure_ascii=False)}]
        return None


def as_call(name: Any, arguments: Any) -> str:
    """A call in the form."""
    return json.dumps({"tool": name, "arguments": arguments}, ensure_ascii=False)


def as_message(text: str) -> str:
    """A message in the form."""
    return json.dumps({"message": text}, ensure_ascii=False)


def _told(tool: Item) -> Iterator[str]:
    """What a tool does, and what its parameters mean."""
    yield f"- {tool['name']}: {tool.get('description') or 'no description'}"
    for name, schema in (tool.get("parameters") or {}).get("properties", {}).items():
        if schema.get("description"):
            yield f"  {name}: {schema['description']}"


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _moved(schema: Any, tool: str) -> Any:
    """A copy of a tool's schema, whose references lead to where its definitions are in the whole."""
    if isinstance(schema, list):
        return [_moved(part, tool) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, tool) for key, value in schema.items()}
    if isinstance(schema.get("$ref"), str):
        moved["$ref"] = f"#/$defs/{tool}.{schema['$ref'].rpartition('/')[2]}"
    return moved


def _outline(schema: Schema) -> Any:
    """What a value looks like, for a reader: `{"count": "<integer>"}`."""
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
