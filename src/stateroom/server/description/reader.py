"""What a JSON schema says, for people: the fields of a value, their types in words, an example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from stateroom.server.description.schemas import PLACE, Schema

SAMPLES = {
    "date-time": "2030-01-31T12:00:00Z",
    "date": "2030-01-31",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com",
    "email": "someone@example.com",
}
"""Texts of the formats that a text may have to have."""

DEEPEST = 3
"""So many levels of a nested value are told: it may hold values of its own kind."""


class Field(NamedTuple):
    """A field of an object, or of something in it."""

    place: str
    """Its name, after those of what it is in: `order.lines[].price`."""
    type: str
    required: bool
    default: str | None
    """As JSON."""
    description: str


class Reader:
    """Reads schemas that refer to these definitions."""

    def __init__(self, definitions: Schema) -> None:
        self.definitions = definitions

    def resolved(self, schema: Any) -> Schema:
        """The schema that a reference stands for, with what is said beside it; `True` is one that says nothing."""
        while isinstance(schema, dict) and "$ref" in schema:
            target = self.definitions[schema["$ref"].removeprefix(PLACE)]
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema if isinstance(schema, dict) else {}

    # Fields.

    def fields(self, schema: Schema, above: str = "", levels: int = DEEPEST) -> Iterator[Field]:
        """What an object may have, each followed by what that may have in turn."""
        properties, required = self._properties(schema)
        for name, part in properties.items():
            said = self.resolved(part)
            default = as_json(said["default"]) if "default" in said else None
            yield Field(above + name, self.type(part), name in required, default, said.get("description") or "")
            for form, inner in self._forms(part, levels - 1):
                yield from self.fields(inner, f"{above}{name}{form}.", levels - 1)

    def _properties(self, schema: Schema) -> tuple[Schema, set[str]]:
        """The properties of an object and the names of those that it must have; of several forms, the first counts."""
        schema = self.resolved(schema)
        properties, required = dict(schema.get("properties", {})), set(schema.get("required", ()))
        for part in [*schema.get("allOf", ()), *_choices(schema)[:1]]:
            more, needed = self._properties(part)
            properties |= more
            required |= needed
        return properties, required

    def _forms(self, schema: Schema, levels: int) -> list[tuple[str, Schema]]:
        """The objects that a value may be or hold, each with what leads to it."""
        schema = self.resolved(schema)
        if levels <= 0:
            return []
        if "properties" in schema:
            return [("", schema)]
        if "items" in schema:
            return [(f"[]{form}", inner) for form, inner in self._forms(schema["items"], levels - 1)]
        forms = [found for choice in _choices(schema) for found in self._forms(choice, levels)]
        named = len(forms) > 1
        return [(f"{form}({inner.get('title', '')})" if named else form, inner) for form, inner in forms]

    # Types.

    def type(self, schema: Schema, within: tuple[str, ...] = ()) -> str:
        """A type in words; `within` are the references that it stands in, for it may refer to itself."""
        place = str(schema.get("$ref", "")) if isinstance(schema, dict) else ""
        if place and place in within:
            return place.removeprefix(PLACE).removesuffix("-Input").removesuffix("-Output")
        within = (*within, place)
        schema = self.resolved(schema)
        if choices := _choices(schema):
            return " or ".join(dict.fromkeys(self.type(choice, within) for choice in choices))
        if "const" in schema or "enum" in schema:
            return " or ".join(as_json(value) for value in schema.get("enum", [schema.get("const")]))
        kind = _kind(schema)
        if kind == "array" and schema.get("items"):
            return f"array of {self.type(schema['items'], within)}"
        if kind == "object" and "title" in schema:
            return str(schema["title"])
        return f"{kind} ({schema['format']})" if "format" in schema else kind

    # Examples.

    def example(self, schema: Schema, levels: int = DEEPEST) -> Any:
        """A value that a schema allows, as small as may be; deep down nulls and empty lists are the smallest."""
        schema = self.resolved(schema)
        if levels < -DEEPEST:
            return None  # there is no end to it
        for given in ("examples", "enum"):
            if isinstance(schema.get(given), list) and schema[given]:
                return schema[given][0]
        for given in ("const", "default"):
            if given in schema:
                return schema[given]
        if choices := _choices(schema):
            return None if levels <= 0 and {"type": "null"} in choices else self.example(choices[0], levels)
        properties, required = self._properties(schema)
        if properties:
            return {name: self.example(part, levels - 1) for name, part in properties.items() if name in required}
        return self._simplest(schema, levels)

    def _simplest(self, schema: Schema, levels: int) -> Any:
        kind = _kind(schema)
        if kind == "array":
            parts = schema.get("prefixItems") or ([schema["items"]] if schema.get("items") and levels > 0 else [])
            return [self.example(part, levels - 1) for part in parts]
        if kind in ("integer", "number"):
            return schema.get("minimum", 1)
        if kind == "string":
            return SAMPLES.get(schema.get("format", ""), "text")
        return {"boolean": True, "null": None}.get(kind, {})


def as_json(value: Any) -> str:
    """A value as a person would write it."""
    return json.dumps(value, ensure_ascii=False)


def _choices(schema: Schema) -> list[Schema]:
    return schema.get("anyOf") or schema.get("oneOf") or []


def _kind(schema: Schema) -> str:
    kind = schema.get("type", "object" if schema.keys() & {"properties", "allOf"} else "anything")
    return str(kind[0] if isinstance(kind, list) else kind)
