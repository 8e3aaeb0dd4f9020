"""The docs page: the OpenAPI document for people, as one HTML file that loads nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from shlex import quote
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from stateroom.server.description.openapi import ABOUT
from stateroom.server.description.schemas import PLACE, Schema

TOOLS = "tools"

STEPS = {"seed_session": "Seed", TOOLS: "Call tools", "verify": "Verify", "close_session": "Close"}
"""An episode, in order."""

EFFECTS = {
    "read": "only looks at the state",
    "write": "changes the state, and nothing else",
    "external": "reaches outside",
}


SAMPLES = {
    "date-time": "2030-01-31T12:00:00Z",
    "date": "2030-01-31",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com",
    "email": "someone@example.com",
}
"""Examples of texts by format."""

DEEPEST = 3
"""Levels of a nested value that are described: it may hold values of its own kind."""


@cache
def style() -> str:
    """The page's style sheet."""
    return (files("stateroom.server.description") / "page.css").read_text(encoding="utf-8")


def policy() -> str:
    """The Content-Security-Policy of the page: its own style, and nothing else."""
    digest = b64encode(sha256(style().encode()).digest()).decode()
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"{nothing}; style-src 'sha256-{digest}'"


def page(document: Schema, base: str) -> str:
    """The page of a document; `base` is the server's URL in its examples."""
    return _Page(document, base).html()


class _Page:
    def __init__(self, document: Schema, base: str) -> None:
        self.base = base
        self.info = document["info"]
        self.tags = document["tags"]
        self.errors = document["components"]["responses"]
        self.reader = SchemaReader(document["components"]["schemas"])
        self.operations = [
            {"path": path, "method": method.upper(), **operation}
            for path, item in document["paths"].items()
            for method, operation in item.items()
        ]

    def html(self) -> str:
        title = escape(self.info["title"])
        environments = "".join(self._environment(tag) for tag in self.tags)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} · Stateroom</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style()}</style></head><body>'
            f"<header><h1>{title}</h1><p>Stateroom {escape(self.info['version'])} · "
            f'<a href="openapi.json">openapi.json</a></p></header>'
            f"{self._contents()}<main>{environments}{self._server()}{self._manual()}</main></body></html>"
        )

    def _contents(self) -> str:
        groups = "".join(
            f"<li>{_link(tag['name'], tag['name'])}<ul>"
            + "".join(f"<li>{_link(tool['operationId'], _name(tool))}</li>" for tool in self._tools(tag))
            + "</ul></li>"
            for tag in self.tags
        )
        rest = f"<li>{_link('/server', 'Server')}</li><li>{_link('/manual', 'How it works')}</li>"
        return f"<nav><ul>{groups}{rest}</ul></nav>"

    def _of(self, tag: Schema) -> list[Schema]:
        return [operation for operation in self.operations if tag["name"] in operation.get("tags", ())]

    def _tools(self, tag: Schema) -> list[Schema]:
        return [operation for operation in self._of(tag) if "x-stateroom-effect" in operation]

    # An environment.

    def _environment(self, tag: Schema) -> str:
        others = {_name(one): one for one in self._of(tag) if "x-stateroom-effect" not in one}
        steps = "".join(
            f"<li><h3>{title}</h3>{self._tool_cards(tag) if step == TOOLS else self._card(others.pop(step))}</li>"
            for step, title in STEPS.items()
        )
        return (
            f'<section id="{escape(tag["name"])}"><h2>{escape(tag["name"])}</h2>{_prose(tag["description"])}'
            f"<ol>{steps}</ol><h3>Also</h3>{_endpoints(list(others.values()))}</section>"
        )

    def _tool_cards(self, tag: Schema) -> str:
        home = self._of(tag)[0]["path"].rpartition("/")[0]
        cards = "".join(map(self._card, self._tools(tag))) or "<p>There are none.</p>"
        return f"{cards}<p>The same over MCP: <code>{escape(self.base + home)}/mcp</code></p>"

    def _card(self, operation: Schema) -> str:
        effect = operation.get("x-stateroom-effect")
        badge = f'<span class="{effect}" title="{EFFECTS[effect]}">{effect}</span>' if effect else ""
        taken = operation["requestBody"]["content"]["application/json"]["schema"]
        given = self._table(operation["responses"]["200"]["content"]["application/json"]["schema"])
        return (
            f'<article id="{escape(operation["operationId"])}"><h4><code>{_route(operation)}</code>{badge}</h4>'
            f"{_prose(operation.get('description') or operation['summary'])}"
            f"{self._table(taken) or '<p>It takes nothing.</p>'}<pre>{escape(self._curl(operation, taken))}</pre>"
            f"{given and f'<details><summary>Reply</summary>{given}</details>'}</article>"
        )

    def _table(self, schema: Schema) -> str:
        """The fields of an object; empty if they are not known."""
        rows = "".join(map(_row, self.reader.fields(schema)))
        head = "<tr><th>Name</th><th>Type</th><th>Required</th><th>Description</th></tr>"
        return rows and f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"

    def _curl(self, operation: Schema, taken: Schema) -> str:
        jar = "-c jar" if _name(operation) == "seed_session" else "-b jar -c jar"
        sent = as_json(self.reader.example(taken))
        return f"curl {jar} {self.base}{operation['path']} \\\n  --json {quote(sent)}"

    # The rest.

    def _server(self) -> str:
        operations = [operation for operation in self.operations if "tags" not in operation]
        return f'<section id="/server"><h2>Server</h2>{_endpoints(operations)}</section>'

    def _manual(self) -> str:
        errors = "".join(
            f"<tr><td>{escape(name.removeprefix('error_'))}</td><td>{_codes(error['x-stateroom-codes'])}</td>"
            f"<td>{_prose(error['description'])}</td></tr>"
            for name, error in self.errors.items()
        )
        effects = "".join(f'<li><span class="{name}">{name}</span> {said}</li>' for name, said in EFFECTS.items())
        head = "<tr><th>Status</th><th>Codes</th><th>Meaning</th></tr>"
        return (
            f'<section id="/manual"><h2>How it works</h2>{_prose(ABOUT)}<h3>Statuses</h3>'
            f"<table><thead>{head}</thead><tbody>{errors}</tbody></table>"
            f'<h3>Effects</h3><p>What a tool does:</p><ul class="effects">{effects}</ul></section>'
        )


def _row(field: DescribedField) -> str:
    need = "yes" if field.required else "no"
    if field.default is not None:
        need = f"no: <code>{escape(field.default)}</code>"
    return (
        f"<tr><td><code>{escape(field.place)}</code></td><td>{escape(field.type)}</td><td>{need}</td>"
        f"<td>{_prose(field.description)}</td></tr>"
    )


def _endpoints(operations: list[Schema]) -> str:
    rows = "".join(
        f"<tr><td><code>{_route(operation)}</code></td><td>{_prose(operation['summary'])}</td></tr>"
        for operation in operations
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _route(operation: Schema) -> str:
    return f"{operation['method']} {escape(operation['path'])}"


def _codes(codes: list[str]) -> str:
    return " ".join(f"<code>{escape(code)}</code>" for code in codes)


def _name(operation: Schema) -> str:
    """The name of an operation within its environment."""
    return str(operation["operationId"]).rpartition(".")[2]


def _link(place: str, text: str) -> str:
    return f'<a href="#{escape(place)}">{escape(text)}</a>'


def _prose(text: str) -> str:
    """Markdown as HTML; tags in it are text."""
    return str(MarkdownIt("js-default").render(text))


class DescribedField(NamedTuple):
    """A field of an object, or of an object in it."""

    place: str
    """Its name, with the names of the objects around it: `order.lines[].price`."""
    type: str
    required: bool
    default: str | None
    """As JSON."""
    description: str


class SchemaReader:
    """Describes JSON schemas for people: fields, types in words, examples."""

    def __init__(self, definitions: Schema) -> None:
        self.definitions = definitions

    def resolved(self, schema: Any) -> Schema:
        """The schema that a reference refers to, with its own keys beside it; `True` is an empty schema."""
        while isinstance(schema, dict) and "$ref" in schema:
            target = self.definitions[schema["$ref"].removeprefix(PLACE)]
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema if isinstance(schema, dict) else {}

    # Fields.

    def fields(self, schema: Schema, above: str = "", levels: int = DEEPEST) -> Iterator[DescribedField]:
        """The fields of an object, each followed by its own fields."""
        properties, required = self._properties(schema)
        for name, part in properties.items():
            said = self.resolved(part)
            default = as_json(said["default"]) if "default" in said else None
            yield DescribedField(
                above + name, self.type(part), name in required, default, said.get("description") or ""
            )
            for form, inner in self._forms(part, levels - 1):
                yield from self.fields(inner, f"{above}{name}{form}.", levels - 1)

    def _properties(self, schema: Schema) -> tuple[Schema, set[str]]:
        """The properties of an object and the names of the required ones; of several forms, the first counts."""
        schema = self.resolved(schema)
        properties, required = dict(schema.get("properties", {})), set(schema.get("required", ()))
        for part in [*schema.get("allOf", ()), *_choices(schema)[:1]]:
            more, needed = self._properties(part)
            properties |= more
            required |= needed
        return properties, required

    def _forms(self, schema: Schema, levels: int) -> list[tuple[str, Schema]]:
        """The objects that a value may be or hold, each with its place."""
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
        """A type in words; `within` are the references around it, since it may refer to itself."""
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
        """A value that a schema allows, as small as possible."""
        schema = self.resolved(schema)
        if levels < -DEEPEST:
            return None  # it refers to itself without end
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
    """A value as JSON, for people."""
    return json.dumps(value, ensure_ascii=False)


def _choices(schema: Schema) -> list[Schema]:
    return schema.get("anyOf") or schema.get("oneOf") or []


def _kind(schema: Schema) -> str:
    kind = schema.get("type", "object" if schema.keys() & {"properties", "allOf"} else "anything")
    return str(kind[0] if isinstance(kind, list) else kind)
