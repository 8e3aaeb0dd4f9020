from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, RootModel, create_model
from typing_extensions import TypedDict

from stateroom.errors import DefinitionError
from stateroom.state import Desk, State, commit, decode, draft_of, encode, shape_of

T = TypeVar("T")
UserId = NewType("UserId", str)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Strange(Enum):
    THING = object()


class Item(BaseModel):
    name: str = ""


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


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
    *(Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")], list[int] | list[str]),
    list[Annotated[Cat | Dog, Field(discriminator="kind")]],
    *(Annotated[list[int], Field(max_length=3)], dict[str, list[dict[int, tuple[set[str], Item | None]]]]),
]


@pytest.mark.parametrize("annotation", SUPPORTED, ids=str)
def test_a_supported_type_defines_a_state(annotation: Any) -> None:
    made = create_model("Made", __base__=State, field=(annotation, ...))
    assert set(shape_of(made).fields) == {"field"}


UNSUPPORTED = [
    *(Any, object, complex, time, bytearray, list, dict, set, tuple, deque[int], range, Point, Row, type[int]),
    *(list[Any], dict[str, object], dict[float, int], dict[tuple[int, int], int], dict[bool, int], set[Item]),
    *(
        set[list[int]],
        int | complex,
        tuple[int, complex],
        Box[complex],
        Strange,
        Literal[Color.RED],
        Open,
        Hidden,
        Rooted,
    ),
]


@pytest.mark.parametrize("annotation", UNSUPPORTED, ids=str)
def test_an_unsupported_type_fails_by_name_when_the_class_is_defined(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^Made\.field"):
        create_model("Made", __base__=State, __config__=None, field=(annotation, ...))


def test_the_error_names_a_field_within_a_nested_model() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        bad: deque[int]

    with pytest.raises(DefinitionError, match=r"^Outer\.inner\.bad: .*deque"):

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
        with pytest.raises(DefinitionError, match="complex"):
            create_model("Made", __base__=State, back=(Back, ...))


def test_an_unknown_field_is_refused() -> None:
    class Counter(State):
        value: int = 0

    with pytest.raises(ValueError, match="Extra inputs"):
        Counter(valeu=1)  # type: ignore[call-arg]


class Late(State):
    later: list[Later] = []


class Later(BaseModel):
    late: Late | None = None


def test_a_name_defined_later_is_resolved_at_first_use() -> None:
    draft = draft_of(Late(later=[Later()]), Desk())
    draft.later[0].late = Late()
    assert commit(draft).state == Late(later=[Later(late=Late())])


def test_a_generic_state_is_checked_when_its_parameter_is_known() -> None:
    class Shelf(State, Generic[T]):
        items: list[T] = []

    draft = draft_of(Shelf[int](items=[1]), Desk())
    draft.items.append(2)
    assert commit(draft).state.items == [1, 2]
    with pytest.raises(DefinitionError, match="complex"):
        Shelf[complex]


def test_a_state_that_refers_to_itself_within_a_function() -> None:
    class Node(State):
        kids: list[Node] = []

    draft = draft_of(Node(kids=[Node()]), Desk())
    draft.kids[0].kids.append(Node())
    state = commit(draft).state
    assert Node.model_validate(decode(encode(state))) == state


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12")
def test_an_alias_that_refers_to_itself_is_refused() -> None:
    code = "type Nest = dict[str, Nest]\nclass Made(State):\n    nest: Nest"
    with pytest.raises(DefinitionError, match="refers to itself"):
        exec(compile(code, "made", "exec", dont_inherit=True), {"State": State, "__name__": __name__})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12")
def test_an_alias_stands_for_its_value() -> None:
    space: dict[str, Any] = {"State": State, "__name__": __name__}
    code = "type Ids = list[int]\nclass Made(State):\n    ids: Ids = [1]"
    exec(compile(code, "made", "exec", dont_inherit=True), space)
    draft = draft_of(space["Made"](), Desk())
    draft.ids.append(2)
    assert commit(draft).state.ids == [1, 2]
