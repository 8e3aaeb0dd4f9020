"""State classes made by chance, and programs of changes as tools make them.

`check_generated_class(data)` draws a class, seeds a session of it, and calls a tool some times. After each call three
must agree, in every value and type: the session that wrote, one that is read anew from the store, and one in another
worker that follows. A class that cannot be kept is refused when it is defined, which is as good. (mypy cannot follow
annotations that are made as the program runs.)
"""

# mypy: ignore-errors

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union, get_origin
from uuid import UUID
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    RootModel,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.errors import DefinitionError, InvalidState, ToolError

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


class Word(StrEnum):
    A = "a"
    RED = "red"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(Enum):
    HERE = (1, 2)
    THERE = (3, "x")
    ALL = frozenset({1})


class Odd(Enum):
    DAY = date(2024, 1, 1)
    SUM = Decimal("1.50")
    ID = UUID(int=7)
    RAW = b"raw"
    NONE = None
    HALF = 0.5
    MOMENT = datetime(2024, 1, 1, tzinfo=UTC)


class Right(Flag):
    READ = 1
    WRITE = 2


class Shouted(str):
    __slots__ = ()


class Late(datetime):
    pass


class Box(BaseModel, Generic[T]):
    content: list[T] = []
    best: Optional[T] = None  # noqa: UP045


class Wrapped(RootModel[list[int]]):
    pass


class Row(TypedDict):
    x: int


@dataclass
class Point:
    x: int = 0


class Kind(NamedTuple):
    """A type, values for it (some of which it may refuse), and the kinds of its parts."""

    annotation: Any
    values: st.SearchStrategy[Any]
    parts: tuple[Kind, ...] = ()
    keys: Kind | None = None
    fields: dict[str, Kind] = {}


words = st.sampled_from(["", "a", "B", " c ", "red", "abcdef", "\ud83d", "1"])
zones = st.sampled_from(
    [None, UTC, timezone(timedelta(hours=1), "CET"), ZoneInfo("Europe/Paris"), timezone(timedelta(hours=-3))]
)
moments = st.builds(
    datetime, st.just(2024), st.just(10), st.just(27), st.just(2), st.sampled_from([0, 30]), tzinfo=zones,
    fold=st.sampled_from([0, 1]),
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | words | st.sampled_from([0.0, -0.0, 1.0, float("inf")]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
LEAVES = [
    Kind(int, st.integers(-3, 3) | st.sampled_from([2**70, True, 1.0, "1", Level.LOW])),
    Kind(str, words | st.sampled_from([Shouted("x"), Word.A, 1])),
    Kind(float, st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan"), 1, "2"])),
    Kind(bool, st.booleans() | st.just(1)),
    Kind(bytes, st.sampled_from([b"", b"x", "y", bytearray(b"z")])),
    Kind(datetime, moments | st.sampled_from(["2024-01-01T00:00:00Z", Late(2024, 1, 1)])),
    Kind(date, st.sampled_from([date(2024, 1, 1), datetime(2024, 1, 1), "2024-01-02"])),
    Kind(timedelta, st.sampled_from([timedelta(1), timedelta.max, 3.5])),
    Kind(UUID, st.sampled_from([UUID(int=1), str(UUID(int=2))])),
    Kind(Decimal, st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("-0"), 1, "2.50"])),
    Kind(None, st.none()),
    Kind(Literal["a", "red", 1], st.sampled_from(["a", "red", 1, True, Word.A])),
    *(Kind(kind, st.sampled_from([*kind]) | words) for kind in (Color, Word, Level, Place, Odd, Right)),
    Kind(Right, st.sampled_from([Right.READ | Right.WRITE, Right(0)])),
]
JSON = Kind(JsonValue, json_values)
NEVER = [Kind(kind, st.none()) for kind in (Wrapped, Row, Point, complex, list[Any], Literal[Color.RED])]
CONFIGS: list[ConfigDict] = [
    *([{}] * 4),
    *({"str_strip_whitespace": True}, {"str_to_lower": True}, {"str_max_length": 3}, {"allow_inf_nan": False}),
    *({"strict": True}, {"use_enum_values": True}, {"extra": "forbid"}, {"validate_assignment": True}),
    *(
        {"revalidate_instances": "always"},
        {"coerce_numbers_to_str": True},
        {"frozen": True},
        {"validate_default": True},
    ),
]


class Maker:
    """Makes kinds by chance."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.made = 0

    def chance(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def kind(self, depth: int) -> Kind:
        made = self._kind(depth)
        check = self.chance(*([None] * 7), "few", "sorted", "strict", "before")
        if check is None:
            return made
        note = {
            "few": Field(max_length=3), "sorted": AfterValidator(arranged), "strict": Field(strict=True),
            "before": BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value),
        }[check]  # fmt: skip
        has_length = made.annotation is str or get_origin(made.annotation) in (list, dict, set, frozenset, tuple)
        return made if check == "few" and not has_length else made._replace(annotation=Annotated[made.annotation, note])

    def _kind(self, depth: int) -> Kind:
        if depth == 0 or self.chance(True, False, False):
            return self.chance(*LEAVES)
        what = self.chance(
            "list", "dict", "set", "frozenset", "tuple", "row", "union", "optional", "model", "box", "json", "never"
        )
        if what == "model":
            return self.model(depth - 1)
        if what in ("json", "never"):
            return JSON if what == "json" or self.chance(True, True, True, False) else self.chance(*NEVER)
        one = self.kind(depth - 1)
        annotation, values = one.annotation, one.values
        if what == "box":
            box = Box[annotation]
            parts = {"content": Kind(list[annotation], st.lists(values, max_size=2), (one,)), "best": one}
            made = st.builds(lambda **fields: {**fields}, content=parts["content"].values, best=st.none() | values)
            return Kind(box, made, (), None, parts)
        if what == "optional":
            return Kind(Optional[annotation], st.none() | values, (one,))  # noqa: UP045
        if what == "list":
            return Kind(list[annotation], st.lists(values, max_size=3), (one,))
        if what == "row":
            return Kind(tuple[annotation, ...], st.lists(values, max_size=2).map(tuple), (one,))
        if what in ("set", "frozenset"):
            one = self.chance(*LEAVES)
            container: Any = set if what == "set" else frozenset
            many = st.lists(one.values, max_size=3).map(lambda items: container(filter(_is_hashable, items)))
            return Kind(container[one.annotation], many, (one,))
        if what == "dict":
            keys = self.chance(*(kind for kind in LEAVES if kind.annotation in (str, int, Color, Word, Place, Odd)))
            table = st.lists(st.tuples(keys.values.filter(_is_hashable), values), max_size=3).map(dict)
            return Kind(dict[keys.annotation, annotation], table, (one,), keys)
        other = self.kind(depth - 1)
        if what == "tuple":
            return Kind(tuple[annotation, other.annotation], st.tuples(values, other.values), (one, other))
        return Kind(Union[annotation, other.annotation], values | other.values, (one, other))  # noqa: UP007

    def model(self, depth: int, base: type[BaseModel] = BaseModel) -> Kind:
        """A model with fields and validators; it may hold others of its own class."""
        self.made += 1
        name = f"Made{self.made}"
        names = self.draw(st.sampled_from(["ab", "ac", "abc", "abcd", "kab"]))
        kinds = {field: self.kind(depth) for field in names}
        if "k" in names:
            choice = self.chance("x", "y")
            kinds["k"] = Kind(Literal[choice], st.just(choice))
        types: dict[str, Any] = {field: kind.annotation for field, kind in kinds.items()}
        space: dict[str, Any] = {field: self._default(kind) for field, kind in kinds.items()}
        if recursive := base is BaseModel and self.chance(True, False, False):
            types |= {"inner": f"Optional[{name}]", "kids": f"list[{name}]"}
            space |= {"inner": None, "kids": []}
        space["model_config"] = ConfigDict(arbitrary_types_allowed=True, **self.chance(*CONFIGS))
        space |= {"__annotations__": types, "__module__": __name__, **self._validators(names)}
        made = type(base)(name, (base,), space)
        if recursive:
            made.model_rebuild(_types_namespace={name: made, "Optional": Optional})
        values = st.fixed_dictionaries({}, optional={field: kind.values for field, kind in kinds.items()})
        itself = Kind(
            made, values.flatmap(lambda given: st.sampled_from([given, _Instance(made, given)])), (), None, kinds
        )
        if recursive:
            kinds["inner"], kinds["kids"] = itself, Kind(list[made], st.lists(values, max_size=2), (itself,))
        return itself

    def _default(self, kind: Kind) -> Any:
        value = self.draw(kind.values)
        return Field(default_factory=lambda: fresh(value))

    def _validators(self, names: str) -> dict[str, Any]:
        """Validators that check, convert, sort and derive."""
        what = self.chance(*([None] * 5), "arrange", "look", "copy", "before", "after", "wrap")
        first, last = names[0], names[-1]
        if what == "arrange":
            return {"check": field_validator(last)(classmethod(lambda cls, value: arranged(value)))}
        if what in ("look", "copy"):
            return self._looking(what, first, last)
        return self._model_validators(what, first, last)

    def _looking(self, what: str, first: str, last: str) -> dict[str, Any]:
        """A validator of the last field that looks at the first."""
        if what == "look":  # it is refused when an earlier field is short

            def look(cls: Any, value: Any, info: ValidationInfo) -> Any:
                if isinstance(value, int) and isinstance(info.data.get(first), int) and value > info.data[first]:
                    raise ValueError("larger than the first")
                return value

            return {"check": field_validator(last)(classmethod(look))}

        def follow(cls: Any, value: Any, info: ValidationInfo) -> Any:
            given = info.data.get(first)
            return given if type(given) is type(value) else value

        return {"check": field_validator(last, mode="before")(classmethod(follow))}

    def _model_validators(self, what: str | None, first: str, last: str) -> dict[str, Any]:
        """A validator of the whole model, or none."""
        if what == "before":

            def derive(cls: Any, data: Any) -> Any:
                if isinstance(data, dict) and isinstance(data.get(first), int) and isinstance(data.get(last), int):
                    return {**data, last: data[first]}
                return data

            return {"check": model_validator(mode="before")(classmethod(derive))}
        if what == "wrap":

            def wrap(cls: Any, data: Any, handler: Any) -> Any:
                made = handler(data)
                if getattr(made, first) == "red":
                    raise ValueError("it is red")
                return made

            return {"check": model_validator(mode="wrap")(classmethod(wrap))}
        if what == "after":

            def keep(self: Any) -> Any:
                if isinstance(getattr(self, last), list) and len(getattr(self, last)) > 2:
                    getattr(self, last).pop()
                return self

            return {"check": model_validator(mode="after")(keep)}
        return {}


class _Instance(NamedTuple):
    """A value that is to be made by its class."""

    kind: Any
    given: Any


def fresh(value: Any) -> Any:
    """A value that nobody else has, with instances of the classes that it is to have."""
    if isinstance(value, _Instance):
        given = {name: fresh(part) for name, part in value.given.items()}
        try:
            return value.kind(**given)
        except (ValidationError, TypeError):
            return given
    if type(value) in (list, set, tuple, frozenset):
        return type(value)(map(fresh, value))
    return {key: fresh(part) for key, part in value.items()} if type(value) is dict else value


def arranged(value: Any) -> Any:
    """Lists and dicts in order, texts in capitals: what a validator may make of them."""
    if isinstance(value, list):
        return sorted(value, key=repr)
    if type(value) is dict:
        return dict(sorted(value.items(), key=repr))
    return value.upper() if type(value) is str and len(value) > 1 else value


def exact(value: Any, *, with_fields_set: bool = True) -> Any:
    """A value with every type spelled out, and dicts in order, so that equal means the same."""
    within = partial(exact, with_fields_set=with_fields_set)
    if isinstance(value, BaseModel):
        kind, fields_set = value.__class__, {*value.model_fields_set} if with_fields_set else None
        return [kind, fields_set, *((name, within(getattr(value, name))) for name in kind.model_fields)]
    if isinstance(value, dict):
        return ["dict", *((within(key), within(part)) for key, part in value.items())]
    if isinstance(value, list | tuple):
        return ["tuple" if isinstance(value, tuple) else "list", *map(within, value)]
    if isinstance(value, set | frozenset):
        return ["set" if isinstance(value, set) else "frozenset", {(type(part), repr(part)) for part in value}]
    return (type(value), repr(value))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _places(value: Any, kind: Kind) -> list[tuple[Any, Kind]]:
    """What can change in a state, with its kind; one that may be of several has them all as parts."""
    found: list[tuple[Any, Kind]] = []
    if isinstance(value, BaseModel):
        options = [kind, *kind.parts]
        for option in options:
            if option.fields and getattr(option.annotation, "__origin__", option.annotation) is value.__class__:
                found = [(value, option)]
                for name, part in option.fields.items():
                    found += _places(getattr(value, name), part)
        return found or [at for part in kind.parts for at in _places(value, part)]
    if isinstance(value, dict | list | set):
        found.append((value, kind))
    if isinstance(value, dict):
        found += [at for key in list(value) for part in kind.parts for at in _places(value[key], part)]
    elif isinstance(value, list | tuple):
        found += [at for item in value for part in kind.parts for at in _places(item, part)]
    return found


def _action(draw: Any, target: Any, kind: Kind) -> Callable[[Any], Any]:
    """Something that a tool does to a value."""
    if isinstance(target, BaseModel):
        name = draw(st.sampled_from(sorted(kind.fields)))
        value = draw(kind.fields[name].values)
        return lambda node: setattr(node, name, fresh(value))
    part = kind.parts[0] if kind.parts else JSON
    item, index = draw(part.values), draw(st.integers(0, 2))
    if isinstance(target, set):
        return draw(st.sampled_from([lambda node: node.add(fresh(item)), lambda node: node.pop()]))
    if isinstance(target, dict):
        key = draw((kind.keys or Kind(str, words)).values | st.sampled_from([*target] or ["a"]))
        return draw(
            st.sampled_from(
                [
                    lambda node: node.__setitem__(key, fresh(item)),
                    lambda node: node.pop(key),
                    lambda node: node.__setitem__(key, node.pop(min(node, key=repr))),
                ]
            )
        )
    return draw(
        st.sampled_from(
            [
                lambda node: node.append(fresh(item)),
                lambda node: node.insert(index, fresh(item)),
                lambda node: node.__setitem__(index, fresh(item)),
                lambda node: node.pop(index),
                lambda node: node.sort(key=repr),
                lambda node: node.append(node[0]),
                lambda node: node.clear(),
            ]
        )
    )


def check_generated_class(data: st.DataObject) -> None:
    """Draw a class and a program, and compare who writes with who reads after each call."""
    maker = Maker(data.draw)
    try:
        state = maker.model(2, State)
    except (DefinitionError, PydanticUserError, RuntimeError):  # the last is pydantic's word on an odd constraint
        return
    asyncio.run(_follow(data.draw, state))


async def _follow(draw: Any, kind: Kind) -> None:
    first = draw(kind.values)
    act: list[Callable[[Any], Any]] = []

    class MadeEnvironment(Environment[kind.annotation]):  # type: ignore[name-defined]
        """Made by chance."""

        async def seed(self) -> Any:
            return kind.annotation(**fresh(first.given if isinstance(first, _Instance) else first))

        @tool
        async def change(self, state: Any) -> None:
            """Change something."""
            for each in act:
                try:
                    each(state)
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise ToolError(str(error)) from error

        def verify(self) -> float:
            return 0.0

    async with open_store("memory://") as store:
        try:
            writer = await Sessions(MadeEnvironment(), store).seed({})
        except (InvalidState, ValidationError, TypeError):
            return
        follower = await Sessions(MadeEnvironment(), store).open(writer.id)
        for _ in range(draw(st.integers(1, 4))):
            act[:] = []
            for _ in range(draw(st.integers(1, 3))):
                places = _places(writer.state, kind)
                index = draw(st.integers(0, len(places) - 1))
                action = _action(draw, *places[index])
                act.append(lambda state, index=index, action=action: action(_places(state, kind)[index][0]))
            result = await writer.call("change", {})
            assert result.ok or "unexpected" not in str(result.error), result.error
            written = exact(writer.state)
            reader = await Sessions(MadeEnvironment(), store).open(writer.id)
            assert exact(reader.state) == written
            assert exact(await follower.state_at()) == written
