"""Schemas: what of a class counts, and the way from one version to the next."""

from enum import Enum
from types import GenericAlias
from typing import Annotated, Any, ForwardRef, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field, create_model

from stateroom import State
from stateroom.errors import DefinitionError, SchemaChanged
from stateroom.state import first_difference, schema_of
from tests.messages import raises


class Colour(Enum):
    red = 1
    blue = 2


class Part(BaseModel):
    price: int
    parts: list["Part"] = []


class Whole(State):
    parts: dict[str, Part] = {}
    name: str | None = None
    size: Literal["s", "m"] = "s"
    colour: Colour = Colour.red
    pair: tuple[int, str] = (1, "")
    many: tuple[float, ...] = ()
    tags: set[str] = set()
    either: int | list[Part] = 0


def test_every_place_of_a_state_has_its_type() -> None:
    assert schema_of(Whole).places == {
        "parts": "dict by str",
        "parts{}": "object",
        "parts{}.*": "as either[]",
        "name": "nothing or str",
        "size": "one of 'm', 's'",
        "colour": "one of 1, 2",
        "pair": "tuple of 2",
        "pair[0]": "int",
        "pair[1]": "str",
        "many": "tuple of any length",
        "many[]": "float",
        "tags": "set of str",
        "either": "int or list",
        "either[]": "object",
        "either[].price": "int",
        "either[].parts": "list",
        "either[].parts[]": "object",
        "either[].parts[].*": "as either[]",
    }


def fingerprint(**fields: Any) -> str:
    return schema_of(create_model("Made", __base__=State, **fields)).fingerprint


def test_what_can_be_read_as_the_other_is_the_same() -> None:
    plain = fingerprint(a=(int, 0), b=(list[str], []))
    assert fingerprint(b=(list[str], []), a=(int, 0)) == plain
    assert fingerprint(a=(int, 7), b=(list[str], ...)) == plain
    assert fingerprint(a=(Annotated[int, Field(ge=0, description="of them")], 0), b=(list[str], [])) == plain
    assert fingerprint(a=(int | None, 0)) == fingerprint(a=(None | int, 0))
    assert fingerprint(a=(Literal["x", "y"], "x")) == fingerprint(a=(Literal["y", "x"], "x"))


class Cheaper(BaseModel):
    price: float


class Other(BaseModel):
    price: int


BOTH: dict[str, Any] = {"one": (Part, ...), "two": (Other, ...)}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": (int, 0)}, {"a": (int, 0), "b": (str, "")}, "b (str) is new"),
        ({"a": (int, 0)}, {}, "a (int) is gone"),
        ({"a": (int, 0)}, {"a": (str, "")}, "a was int and is str"),
        ({"a": (int, 0)}, {"a": (int | None, 0)}, "a was int and is int or nothing"),
        ({"a": (int, 0)}, {"a": (list[int], [])}, "a was int and is list"),
        ({"a": (list[Part], [])}, {"a": (list[Cheaper], [])}, "a[].price was int and is float"),
        ({**BOTH, "which": (Part, ...)}, {**BOTH, "which": (Other, ...)}, "which.* was as one and is as two"),
    ],
)
def test_what_differs_is_named(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    old, new = create_model("Old", __base__=State, **before), create_model("New", __base__=State, **after)
    assert schema_of(old).fingerprint != schema_of(new).fingerprint
    assert first_difference(schema_of(old).places, schema_of(new).places) == said


class Cart(State, version=3):
    total: int = 0


@Cart.migration(1)
def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    return {"sum": data["price"]}


@Cart.migration(2)
def _from_2(data: dict[str, Any]) -> dict[str, Any]:
    return {"total": data["sum"] * 100}


def test_data_goes_from_version_to_version() -> None:
    upgrade = Cart.__migrations__.upgrade
    assert upgrade({"price": 2}, 1) == upgrade({"sum": 2}, 2) == upgrade({"total": 200}, 3) == {"total": 200}
    assert schema_of(Cart).version == 3


def test_data_for_which_there_is_no_way_is_refused() -> None:
    class Basket(State, version=5):
        total: int = 0

    @Basket.migration(2)
    def _(data: dict[str, Any]) -> dict[str, Any]:
        return {"total": data["nothing"]}

    @Basket.migration(3)
    def _(data: dict[str, Any]) -> Any:
        data["total"] = 1

    Basket.migration(4)(lambda data: {"total": object()})
    for version in (1, 2, 3, 4, 6):  # for the last, which is newer, the code is too old
        with raises(SchemaChanged):
            Basket.__migrations__.upgrade({}, version)


def test_a_migration_that_leads_nowhere_is_refused() -> None:
    for version in (0, 3, 4):
        with raises(DefinitionError):
            Cart.migration(version)(_from_1)
    with raises(DefinitionError):
        Cart.migration(1)(_from_1)
    with raises(DefinitionError):
        Whole.migration(1)(_from_1)
    for odd in (0, -1, "2"):
        with raises(DefinitionError):
            type("Odd", (State,), {}, version=odd)


def test_a_subclass_has_the_version_of_its_base_unless_it_says_so() -> None:
    class Special(Cart):
        extra: int = 0

    class Later(Cart, version=4):
        extra: int = 0

    Later.migration(3)(lambda data: {**data, "extra": 1})
    assert [schema_of(kind).version for kind in (Cart, Special, Later)] == [3, 3, 4]
    assert Special.__migrations__.upgrade({"sum": 1}, 2) == {"total": 100}
    assert Later.__migrations__.upgrade({"sum": 1}, 2) == {"total": 100, "extra": 1}
    assert Cart.__migrations__.upgrade({"sum": 1}, 2) == {"total": 100}


T = TypeVar("T")


class Box(State, Generic[T], version=2):
    content: T


@Box.migration(1)
def _unwrap(data: dict[str, Any]) -> dict[str, Any]:
    return {"content": data["inside"]}


def test_a_generic_state_keeps_its_version_and_migrations() -> None:
    assert schema_of(Box[int]).version == 2
    assert Box[int].__migrations__.upgrade({"inside": 3}, 1) == {"content": 3}


def test_models_that_refer_to_each_other_are_told_of_once() -> None:
    names = "abcdefghij"
    fields: Any = {other: (GenericAlias(list, ForwardRef(other)) | None, None) for other in names}
    models = {name: create_model(name, **fields) for name in names}
    for model in models.values():
        model.model_rebuild(_types_namespace=models)
    start: Any = (models["a"], ...)
    state = create_model("Web", __base__=State, start=start)
    assert len(schema_of(state).places) < 500
