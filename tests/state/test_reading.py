"""Stored data is read as what it was: no code of the author's runs, and nothing is filled in or converted."""

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, JsonValue, field_validator, model_validator

from stateroom import State
from stateroom.errors import InvalidState
from stateroom.state import decode, encode, shape_of


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
    "pair": (0, {"size": 1}),
    "many": ({"size": 1},),
    "free": {"anything": [{}]},
    "words": ["a"],
}

LACKING = [
    ("root", {}, ("root", "size")),
    ("twigs", {"a": {"leaves": []}}, ("twigs", "a", "kind")),
    ("twigs", {"b": {"kind": "x", "leaves": [{}]}}, ("twigs", "b", "leaves", 0, "size")),
    ("rows", [[{"size": 1}], [{"size": 1}, {}]], ("rows", 1, 1, "size")),
    ("either", {}, ("either",)),
    ("either", {"leaves": []}, ("either",)),
    ("either", {"kind": "x", "leaves": [{}]}, ("either", "leaves", 0, "size")),
    ("listed", [{}], ("listed", 0, "size")),
    ("listed", {"a": {}}, ("listed", "a", "size")),
    ("pair", (0, {}), ("pair", 1, "size")),
    ("many", ({"size": 1}, {}), ("many", 1, "size")),
]


@pytest.mark.parametrize(("name", "given", "path"), LACKING)
@pytest.mark.parametrize("way", ["read", "adopt"])
def test_a_field_that_is_missing_is_named_and_not_filled_in(name: str, given: Any, path: Any, way: str) -> None:
    with pytest.raises(InvalidState) as caught:
        getattr(shape_of(Tree), way)({**WHOLE, name: given})
    assert caught.value.path == path


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("way", ["read", "adopt"])
def test_so_is_a_field_of_the_state_itself(name: str, way: str) -> None:
    with pytest.raises(InvalidState) as caught:
        getattr(shape_of(Tree), way)({key: value for key, value in WHOLE.items() if key != name})
    assert caught.value.path == (name,)


@pytest.mark.parametrize(
    ("name", "given"),
    [("root", 7), ("root", {"size": "1"}), ("twigs", []), ("rows", {"a": 1}), ("either", [{}]),
     ("pair", [0, {"size": 1}]), ("words", ("a",)), ("words", [1]), ("free", {1: 1}), ("root", {"size": 1, "more": 1})],
)  # fmt: skip
def test_data_of_another_type_is_refused_at_its_place(name: str, given: Any) -> None:
    with pytest.raises(InvalidState) as caught:
        shape_of(Tree).read({**WHOLE, name: given})
    assert caught.value.path[0] == name


def test_other_codes_data_is_validated_and_may_be_converted() -> None:
    data = {**WHOLE, "pair": [0, {"size": "3"}], "words": ("a", "b")}
    adopted = shape_of(Tree).adopt(data)
    assert (adopted.pair, adopted.words) == ((0, Leaf(size=3)), ["a", "b"])


class Mood(Enum):
    GOOD = "good"


class Zoo(BaseModel):
    kind: Literal["zoo"] = "zoo"
    name: str = ""


class Farm(BaseModel):
    kind: Literal["farm"] = "farm"
    name: str = ""


class Picky(State, strict=True):
    mood: Mood = Mood.GOOD
    place: Zoo | Farm | Leaf = Zoo()
    n: int = 0

    @field_validator("n")
    @classmethod
    def _count(cls, n: int) -> int:
        RUNS.append(n)
        return n

    @model_validator(mode="before")
    @classmethod
    def _look(cls, data: Any) -> Any:
        RUNS.append(0)
        return data


RUNS: list[int] = []


@pytest.mark.parametrize("place", [Zoo(name="z"), Farm(name="f"), Leaf()])
def test_no_code_of_the_authors_runs_when_a_state_is_read(place: Any) -> None:
    state = shape_of(Picky).validate_copy(Picky(place=place), ())
    RUNS.clear()
    read = shape_of(Picky).read(decode(encode(state)))
    assert (read, type(read.place), read.mood) == (state, type(place), Mood.GOOD)
    assert read.model_fields_set == state.model_fields_set
    assert not RUNS
