"""Binding a model's arguments to a tool's parameters."""

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from stateroom import Environment, tool
from stateroom.environment import Tool
from stateroom.errors import InvalidArguments
from tests.messages import raises


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    y: int = 7
    label: str | None = "none"


class Line(BaseModel):
    points: list[Point] = []
    end: Point = Point(x=9)


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: int = 1


class Square(BaseModel):
    kind: Literal["square"]
    side: int = 2


class Address(TypedDict, total=False):
    street: str


def made(method: Any) -> Tool:
    return type("Shop", (Environment,), {method.__name__: tool(method), "verify": lambda self: 0.0})().tools[
        method.__name__
    ]


def buy(
    self,
    item: str,
    count: int = 1,
    colour: Colour = Colour.RED,
    limit: int | None = 5,
    tags: list[str] = [],  # noqa: B006
    on: date | None = None,
) -> None:
    """Buy."""


BUY = made(buy)
DEFAULTS = {"count": 1, "colour": Colour.RED, "limit": 5, "tags": [], "on": None}


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"item": "a"}, {}),
        ({"item": "a", "count": "3"}, {"count": 3}),
        ({"item": "a", "colour": "red"}, {"colour": Colour.RED}),
        ({"item": "a", "on": "2024-02-29"}, {"on": date(2024, 2, 29)}),
        ({"item": "a", "count": None, "colour": None, "tags": None}, {}),
        ({"item": "a", "limit": None}, {"limit": None}),
    ],
)
def test_arguments_are_typed_and_null_means_the_default(given: dict[str, Any], bound: dict[str, Any]) -> None:
    assert BUY.bind(given) == {"item": "a", **DEFAULTS, **bound}


def test_defaults_are_not_shared_between_calls() -> None:
    BUY.bind({"item": "a"})["tags"].append("mine")
    assert BUY.bind({"item": "a"})["tags"] == []


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {"item"}),
        ({"item": None}, {"item"}),
        ({"item": "a", "size": 1}, {"size"}),
        ({"item": "a", "count": "many"}, {"count"}),
        ({"item": "a", "colour": "green"}, {"colour"}),
        ({"item": "a", "tags": ["b", 3]}, {"tags.1"}),
        ({"count": "x", "size": 1}, {"item", "count", "size"}),
    ],
)
def test_each_argument_that_is_wrong_is_named(given: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        BUY.bind(given)
    assert caught.value.fields.keys() == fields
    assert all(field in str(caught.value) for field in fields)
    assert "https://" not in str(caught.value)


def test_null_means_the_default_further_down_too() -> None:
    def draw(self, line: Line, at: Point, shape: Annotated[Circle | Square, Field(discriminator="kind")]) -> None:
        """Draw."""

    bound = made(draw).bind(
        {
            "line": {"points": [{"x": 1, "y": None, "label": None}, {"x": 2, "y": 3, "label": "b"}], "end": None},
            "at": {"x": 1, "y": None, "label": None},
            "shape": {"kind": "square", "side": None},
        }
    )
    assert bound["line"].points == [Point(x=1, y=7, label=None), Point(x=2, y=3, label="b")]
    assert (bound["line"].end, bound["at"].y, bound["shape"].side) == (Point(x=9), 7, 2)


def test_null_means_left_out_in_a_typed_dict_and_a_plain_union() -> None:
    def send(self, to: Address, shape: Circle | Square) -> None:
        """Send."""

    bound = made(send).bind({"to": {"street": None}, "shape": {"kind": "circle", "radius": None}})
    assert (bound["to"], bound["shape"].radius) == ({}, 1)


def test_null_is_still_wrong_where_there_is_no_default() -> None:
    def draw(self, at: Point, names: list[str]) -> None:
        """Draw."""

    given = {"at": {"x": None, "y": None}, "names": [None]}
    with raises(InvalidArguments):
        made(draw).bind(given)
    assert given == {"at": {"x": None, "y": None}, "names": [None]}


@pytest.mark.parametrize(
    "name",
    [
        *("copy", "json", "dict", "schema", "validate", "register", "_private", "self_", "cls", "arguments", "name"),
        *("model_dump", "model_config", "model_fields", "model_x", "parameter_copy"),
        *("title", "default", "description", "type", "properties", "required", "enum"),  # like parts of a schema
    ],
)
def test_parameters_may_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def buy(self, {name}: int, other: int = 1, json_x: int = 2):\n    'Buy.'", namespace)
    bought = made(namespace["buy"])
    assert bought.bind({name: 5, "other": None}) == {name: 5, "other": 1, "json_x": 2}
    schema = bought.definition["parameters"]
    assert list(schema["properties"]) == schema["required"] == [name, "other", "json_x"]
    assert schema["properties"][name] == {"type": "integer"}
    for wrong in ({name: "x"}, {}):
        with pytest.raises(InvalidArguments) as caught:
            bought.bind(wrong)
        assert caught.value.fields.keys() == {name}


def test_a_renamed_parameter_with_a_default_takes_null() -> None:
    def buy(self, copy: int = 3, json: str = Field("a", description="what")) -> None:
        """Buy."""

    assert made(buy).bind({"copy": None, "json": None}) == {"copy": 3, "json": "a"}
