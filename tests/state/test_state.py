from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PrivateAttr,
    RootModel,
    Tag,
    ValidationError,
    create_model,
)
from typing_extensions import TypedDict

from stateroom.errors import DefinitionError
from stateroom.state import DraftContext, State, commit, decode, draft_of, encode, shape_of
from tests.messages import raises
from tests.state.classes import Cat, Color, Dog

T = TypeVar("T")
UserId = NewType("UserId", str)


class Strange(Enum):
    THING = object()


class Lost(Enum):
    NAN = float("nan")


class Text(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Right(IntFlag):
    READ = 1


class Spot(Enum):
    HERE = (1, 2)


class Item(BaseModel):
    name: str = ""


class Box(BaseModel, Generic[T]):
    content: list[T] = []


class Tree(BaseModel):
    kids: list[Tree] = []
    up: Optional[Tree] = None  # noqa: UP045


@dataclass
class Point:
    x: int = 0


class Row(TypedDict):
    x: int


class Kitten(BaseModel):
    kind: Literal["cat", "kitten"] = "kitten"
    lives: int = 9


class Other(BaseModel):
    name: str = ""


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Hidden(BaseModel):
    _secret: int = PrivateAttr(default=0)


class Rooted(RootModel[list[int]]):
    pass


SUPPORTED = [
    *(str, int, float, bool, None, bytes, datetime, date, timedelta, UUID, Decimal, Color, Literal["a", 1]),
    *(Item, Tree, Box[int], Box[Box[Item]], list[int], dict[str, Item], dict[int, list[int]], dict[Color, int]),
    *(dict[UserId, int], dict[Literal["a", "b"], int], dict[Annotated[str, Field(min_length=1)], int]),
    *(tuple[int, str], tuple[int, ...], tuple[()], tuple[Item, ...], set[int], frozenset[Color], set[tuple[int, str]]),
    *(Optional[int], Union[int, str], int | None, list[Item] | None, Item | int, JsonValue, JsonValue | None),  # noqa: UP007, UP045
    *(
        Color | int,
        Level | str,
        Right | str,
        Literal["a"] | str,
        Literal[Text.RED],
        Spot | list[int] | None,
        float | int,
    ),
    *(Cat | Dog | Item, list[Cat] | list[Dog], list[JsonValue] | JsonValue, dict[str, int] | JsonValue, bool | Level),
    *(Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")], list[int] | list[str]),
    list[Annotated[Cat | Dog, Field(discriminator="kind")]],
    *(Annotated[list[int], Field(max_length=3)], dict[str, list[dict[int, tuple[set[str], Item | None]]]]),
]


@pytest.mark.parametrize("annotation", SUPPORTED, ids=str)
def test_a_supported_type_defines_a_state(annotation: Any) -> None:
    made = create_model("Made", __base__=State, field=(annotation, ...))
    assert set(shape_of(made).fields) == {"field"}


UNSUPPORTED = [
    *(array, Mapping[str, int], Path, Callable[[], int]),
    *(Any, object, complex, time, bytearray, list, dict, set, tuple, deque[int], range, Point, Row, type[int]),
    *(list[Any], dict[str, object], dict[float, int], dict[tuple[int, int], int], dict[bool, int], set[Item]),
    *(
        set[list[int]],
        int | complex,
        tuple[int, complex],
        Box[complex],
        Strange,
        Lost,
        Literal[Color.RED],
        Open,
        Hidden,
        Rooted,
    ),
]


AMBIGUOUS = [  # unions whose members cannot be told apart once they are stored
    *(
        Color | str,
        Color | Text,
        Text | str,
        Level | int,
        Right | int,
        Right | Level,
        Color | JsonValue,
        Spot | tuple[int, int],
    ),
    *(Color | Literal["red"], dict[str, list[Color | str]], list[Color] | list[str], dict[Color, int] | dict[str, int]),
    *(set[Level] | set[int], tuple[Color, int] | tuple[str, ...], list[list[Level]] | list[list[int]]),
    *(Item | dict[str, str], Item | JsonValue, Item | Other, list[Item | Other], list[Item] | list[Other]),
    *(
        Item | dict[int, str],
        Cat | Kitten,
        Annotated[Annotated[Item, Tag("a")] | Annotated[Other, Tag("b")], Discriminator(str)],
    ),
]


def test_an_ambiguity_among_models_that_hold_each_other_is_found() -> None:
    class East(BaseModel):
        to: Optional[East | West] = None  # noqa: UP045

    class West(BaseModel):
        to: Optional[East | West] = None  # noqa: UP045

    East.model_rebuild(_types_namespace={"East": East, "West": West, "Optional": Optional})
    West.model_rebuild(_types_namespace={"East": East, "West": West, "Optional": Optional})
    with raises(DefinitionError):
        create_model("Made", __base__=State, start=(East, ...))


def test_enum_values_cannot_take_the_place_of_the_enum() -> None:
    with raises(DefinitionError):
        type("Made", (State,), {"model_config": ConfigDict(use_enum_values=True), "__annotations__": {"field": Color}})


def test_a_validator_of_a_part_cannot_look_at_other_fields() -> None:
    checked = Annotated[int, AfterValidator(lambda value, info: value)]
    assert create_model("Made", __base__=State, field=(checked | None, None))
    with raises(DefinitionError):
        create_model("Made", __base__=State, field=(list[checked], ...))


@pytest.mark.parametrize("annotation", [*UNSUPPORTED, *AMBIGUOUS], ids=str)
def test_a_type_that_cannot_be_stored_or_told_fails_by_name_when_the_class_is_defined(annotation: Any) -> None:
    with raises(DefinitionError):
        create_model("Made", __base__=State, field=(annotation, ...))


def test_the_error_names_a_field_within_a_nested_model() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        bad: deque[int]

    with raises(DefinitionError):

        class Outer(State):
            inner: dict[str, list[Inner]]


def test_a_class_that_failed_leaves_no_half_checked_classes() -> None:
    class Back(BaseModel):
        owner: Optional[Owner] = None  # noqa: UP045

    class Owner(BaseModel):
        back: Back
        bad: complex

    Back.model_rebuild(_types_namespace={"Owner": Owner, "Optional": Optional})
    for _ in range(2):
        with raises(DefinitionError):
            create_model("Made", __base__=State, back=(Back, ...))


def test_an_unknown_field_is_refused() -> None:
    class Counter(State):
        value: int = 0

    with pytest.raises(ValidationError):
        Counter(valeu=1)  # type: ignore[call-arg]


class Late(State):
    later: list[Later] = []


class Later(BaseModel):
    late: Late | None = None


def test_a_name_defined_later_is_resolved_at_first_use() -> None:
    draft = draft_of(Late(later=[Later()]), DraftContext())
    draft.later[0].late = Late()
    assert commit(draft).state == Late(later=[Later(late=Late())])


def test_a_generic_state_is_checked_when_its_parameter_is_known() -> None:
    class Shelf(State, Generic[T]):
        items: list[T] = []

    draft = draft_of(Shelf[int](items=[1]), DraftContext())
    draft.items.append(2)
    assert commit(draft).state.items == [1, 2]
    with raises(DefinitionError):
        Shelf[complex]


def test_a_state_that_refers_to_itself_within_a_function() -> None:
    class Node(State):
        kids: list[Node] = []

    draft = draft_of(Node(kids=[Node()]), DraftContext())
    draft.kids[0].kids.append(Node())
    state = commit(draft).state
    assert Node.model_validate(decode(encode(state))) == state


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12")
def test_an_alias_that_refers_to_itself_is_refused() -> None:
    code = "type Nest = dict[str, Nest]\nclass Made(State):\n    nest: Nest"
    with raises(DefinitionError):
        exec(compile(code, "made", "exec", dont_inherit=True), {"State": State, "__name__": __name__})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12")
def test_an_alias_stands_for_its_value() -> None:
    space: dict[str, Any] = {"State": State, "__name__": __name__}
    code = "type Ids = list[int]\nclass Made(State):\n    ids: Ids = [1]"
    exec(compile(code, "made", "exec", dont_inherit=True), space)
    draft = draft_of(space["Made"](), DraftContext())
    draft.ids.append(2)
    assert commit(draft).state.ids == [1, 2]
