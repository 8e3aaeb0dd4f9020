"""What a model is told about a tool: OpenAI functions, strict wherever that is possible."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from stateroom import Environment, tool
from tests.environments import Tally, Unjudged


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Address(TypedDict, total=False):
    street: str


class Loose(BaseModel, extra="allow"):
    name: str


COLOUR = {"enum": ["red", "blue"], "type": "string"}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
ADDRESS = {
    "type": "object",
    "properties": {"street": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "required": ["street"],
    "additionalProperties": False,
}


def definition(method: Any) -> dict[str, Any]:
    members = {method.__name__: tool(method), "verify": lambda self: 0.0}
    (found,) = type("Shop", (Environment,), members)().tool_definitions()
    json.dumps(found)
    return found


def parameter(hint: Any, *default: Any) -> tuple[Any, bool]:
    """The schema of a parameter with this type and default, and whether the whole is strict."""

    def method(self, it) -> None:
        """Doc."""

    method.__annotations__["it"] = hint
    method.__defaults__ = default or None
    found = definition(method)
    if found["strict"]:
        assert_strict(found["parameters"])
    return found["parameters"]["properties"]["it"], found["strict"]


def assert_strict(node: Any) -> None:
    """What OpenAI's strict mode asks of a schema."""
    if isinstance(node, list):
        for part in node:
            assert_strict(part)
    if not isinstance(node, dict):
        return
    if "properties" in node:
        assert node["additionalProperties"] is False
        assert node["required"] == list(node["properties"])
        for part in node["properties"].values():
            assert part.keys() & {"type", "anyOf", "$ref", "enum", "const"}, part
            assert_strict(part)
    if "$ref" in node:
        assert node.keys() == {"$ref"}
    for key in node.keys() - {"properties"}:
        assert key not in ("default", "oneOf", "allOf", "prefixItems", "title", "discriminator"), node
        assert_strict(node[key])


def test_a_whole_definition() -> None:
    class Shop(Unjudged[Tally]):
        """A shop."""

        @tool
        def buy(self, state: Tally, rng, clock, new_id, session, item: str, count: int = 1) -> dict[str, Any]:
            """Buy an item."""
            return {}

    assert Shop().tool_definitions() == [
        {
            "type": "function",
            "name": "buy",
            "description": "Buy an item.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                "required": ["item", "count"],
                "additionalProperties": False,
            },
            "strict": True,
        }
    ]


def test_no_parameters() -> None:
    def look(self) -> None:
        """Look."""

    found = definition(look)
    assert found["parameters"] == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert found["strict"] is True


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Literal["a"], {"const": "a", "type": "string"}),
        (Colour, COLOUR),
        (Point, POINT),
        (Tree, {"$ref": "#/$defs/Tree"}),
        (list[Point], {"type": "array", "items": POINT}),
        (Annotated[int, Field(ge=1, description="how many")], None),
        (Address, ADDRESS),
    ],
)
def test_a_type_that_strict_mode_knows(hint: Any, schema: dict[str, Any] | None) -> None:
    found, strict = parameter(hint)
    assert strict
    if schema is None:
        schema = {"type": "integer", "minimum": 1, "description": "how many"}
    assert found == schema


@pytest.mark.parametrize(
    "hint", [dict[str, int], dict, Any, list, list[Any], tuple[int, str], Loose, list[dict[str, str]], dict[str, Point]]
)
def test_a_type_that_strict_mode_does_not_know(hint: Any) -> None:
    schema, strict = parameter(hint)
    assert not strict
    assert isinstance(schema, dict)


@pytest.mark.parametrize(
    ("hint", "default", "schema"),
    [
        (int, 3, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | None, None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], "a", {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}]}),
        (Colour, Colour.RED, {"anyOf": [COLOUR, {"type": "null"}]}),
        (Point, Point(x=1), {"anyOf": [POINT, {"type": "null"}]}),
        (int, Field(3, description="d"), {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "d"}),
    ],
)
def test_a_default_makes_null_possible(hint: Any, default: Any, schema: dict[str, Any]) -> None:
    assert parameter(hint, default) == (schema, True)


def test_only_a_type_within_itself_is_a_reference() -> None:
    def move(self, to: Point, tree: Tree, corners: list[Point]) -> None:
        """Move."""

    parameters = definition(move)["parameters"]
    assert_strict(parameters)
    assert parameters["properties"]["to"] == POINT
    assert parameters["properties"]["corners"]["items"] == POINT
    assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert parameters["$defs"].keys() == {"Tree"}


STYLES = {
    "google": "Args:\n    count: how many\n    name: of what,\n        in two lines\n\nReturns:\n    Nothing.",
    "numpy": "Parameters\n----------\ncount : int\n    how many\nname : str\n    of what,\n    in two lines",
    "sphinx": ":param count: how many\n:param name: of what,\n    in two lines\n:returns: Nothing.",
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_docstrings_of_every_style(style: str) -> None:
    def buy(self, count: int, name: str = "x") -> None: ...

    buy.__doc__ = f"Buy things.\n\nAnd pay for them.\n\n{style}"
    found = definition(buy)
    assert found["description"] == "Buy things.\n\nAnd pay for them."
    properties = found["parameters"]["properties"]
    assert properties["count"]["description"] == "how many"
    assert properties["name"]["description"].split() == ["of", "what,", "in", "two", "lines"]


def test_descriptions_of_every_kind_of_parameter() -> None:
    def buy(
        self,
        plain: int,
        own: Annotated[int, Field(description="its own")],
        limited: Annotated[int, Field(ge=1)],
        field: int = Field(3, le=5),
        own_field: int = Field(3, description="its own"),
        point: Point = Point(x=1),  # noqa: B008
        required_point: Point = Field(...),  # noqa: B008
    ) -> None:
        """Buy.

        Args:
            plain: from the docstring
            own: from the docstring
            limited: from the docstring
            field: from the docstring
            own_field: from the docstring
            point: from the docstring
            required_point: from the docstring
        """

    properties = definition(buy)["parameters"]["properties"]
    assert_strict(definition(buy)["parameters"])
    said = {name: schema.get("description") for name, schema in properties.items()}
    assert said == {name: "its own" if name.startswith("own") else "from the docstring" for name in said}
    assert properties["limited"]["minimum"] == 1


def test_a_docstring_serves_all_instances_and_subclasses() -> None:
    shared: Any = Field(3)

    def first(self, count: int = shared) -> None:
        """First.

        Args:
            count: of the first
        """

    def second(self, count: int = shared) -> None:
        """Second.

        Args:
            count: of the second
        """

    assert definition(first)["parameters"]["properties"]["count"]["description"] == "of the first"
    assert definition(second)["parameters"]["properties"]["count"]["description"] == "of the second"
