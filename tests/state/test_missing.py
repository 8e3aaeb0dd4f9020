"""A field that stored data lacks is found, wherever it is, whatever default it has."""

from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from stateroom import State
from stateroom.state import shape_of
from stateroom.state.missing import first_missing


class Leaf(BaseModel):
    size: int = 1


class Twig(BaseModel):
    kind: str = "twig"
    leaves: list[Leaf] = []


class Tree(State):
    root: Leaf = Leaf()
    twigs: dict[str, Twig] = {}
    rows: list[list[Leaf]] = []
    either: Leaf | Twig | None = None
    listed: list[Leaf] | dict[str, Leaf] | None = None
    pair: tuple[int, Leaf] = (0, Leaf())
    many: tuple[Leaf, ...] = ()
    free: JsonValue = None
    words: list[str] = []


WHOLE: dict[str, Any] = {
    "root": {"size": 1},
    "twigs": {"a": {"kind": "twig", "leaves": [{"size": 1}, {"size": 2}]}},
    "rows": [[], [{"size": 1}]],
    "either": None,
    "listed": None,
    "pair": [0, {"size": 1}],
    "many": [{"size": 1}],
    "free": {"anything": [{}]},
    "words": ["a"],
}


@pytest.mark.parametrize(
    ("name", "given", "path"),
    [
        ("root", {}, ("root", "size")),
        ("twigs", {"a": {"leaves": []}}, ("twigs", "a", "kind")),
        (
            "twigs",
            {"a": {"kind": "x", "leaves": []}, "b": {"kind": "x", "leaves": [{}]}},
            ("twigs", "b", "leaves", 0, "size"),
        ),
        ("rows", [[{"size": 1}], [{"size": 1}, {}]], ("rows", 1, 1, "size")),
        ("either", {}, ("either", "size")),
        ("either", {"leaves": []}, ("either", "size")),
        ("either", {"kind": "x", "leaves": [{}]}, ("either", "size")),
        ("listed", [{}], ("listed", 0, "size")),
        ("listed", {"a": {}}, ("listed", "a", "size")),
        ("pair", [0, {}], ("pair", 1, "size")),
        ("many", [{"size": 1}, {}], ("many", 1, "size")),
    ],
)
def test_what_is_missing_is_found(name: str, given: Any, path: tuple[Any, ...]) -> None:
    assert first_missing({**WHOLE, name: given}, shape_of(Tree)) == path


@pytest.mark.parametrize("name", WHOLE)
def test_so_is_a_field_of_the_state_itself(name: str) -> None:
    data = {key: value for key, value in WHOLE.items() if key != name}
    assert first_missing(data, shape_of(Tree)) == (name,)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("either", {"size": 1}),
        ("either", {"kind": "x", "leaves": []}),
        ("listed", []),
        ("listed", {"a": {"size": 1}}),
        ("many", []),
        ("free", [{}]),
        # What is of another type is for validation to refuse.
        ("root", 7),
        ("twigs", []),
        ("rows", {"a": 1}),
        ("either", [{}]),
        ("pair", [0]),
        ("pair", 7),
        ("words", 7),
    ],
)
def test_what_lacks_nothing_passes(name: str, given: Any) -> None:
    assert first_missing(WHOLE, shape_of(Tree)) is None
    assert first_missing({**WHOLE, name: given}, shape_of(Tree)) is None
