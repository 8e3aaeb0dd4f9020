"""Options, each declared once: a field of a class, with its type, bounds, default and description.

The Python API, the command line with its help, the sections of a configuration file and the description of a run are
derived from these classes. An `Option` in a field's annotation overrides what is derived from the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, wraps
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, dataclass_transform, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema

from stateroom.errors import InvalidOption, format_path

K = TypeVar("K")
P = ParamSpec("P")
R = TypeVar("R")

PLAIN = (bool, int, float, str, Path)
"""Types that can be parsed from a text."""


@dataclass(frozen=True)
class Option:
    """Settings of an option that cannot be derived from its field."""

    short: str | None = None
    """The short flag, such as `-r`."""
    flag: str | None = None
    """The flag, if it is not named after the field."""
    metavar: str | None = None
    """The placeholder for the value in the help."""
    variable: str | None = None
    """The environment variable that can set the value."""
    value: Callable[[str], Any] = str
    """For a mapping: converts the VALUE of NAME=VALUE."""
    example: str = ""
    """For a mapping: an example, such as `temperature=0.7`."""
    stored: bool = True
    """Whether configuration files and descriptions of runs have the option. Secrets are never stored."""
    may_change: bool = False
    """Whether a resumed run may have another value."""


class Unchecked:
    """Marks an option whose type is only for editors and mypy; the code that takes the value validates it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.any_schema()


class OptionField:
    """An option, as its field declares it."""

    def __init__(self, name: str, info: FieldInfo) -> None:
        self.name = name
        self.info = info
        self.description = info.description or ""
        self.is_positional = not info.kw_only
        self.option: Option = next((each for each in info.metadata if isinstance(each, Option)), Option())

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return self.option.flag or flag_of(self.name)

    @cached_property
    def kind(self) -> Any:
        """The type of the value in a file: the first type of a union, and `str` for what is written as a text."""
        kind = self.info.annotation
        while get_origin(kind) in (Annotated, Union, UnionType):
            kind = get_args(kind)[0]
        origin = get_origin(kind)
        if origin is Literal:
            return kind
        if origin in (Mapping, Sequence):
            return dict[str, Any] if origin is Mapping else list[str]
        return kind if kind in PLAIN else str

    @property
    def default(self) -> Any:
        """The value by default."""
        made = self.info.get_default(call_default_factory=True)
        return Parameter.empty if made is PydanticUndefined else made

    def bound(self, kind: type[Ge] | type[Le]) -> Any:
        """The lower or upper bound of the value."""
        limit = next((each for each in self.info.metadata if isinstance(each, kind)), None)
        return limit and (limit.ge if isinstance(limit, Ge) else limit.le)


def flag_of(name: str) -> str:
    """The flag for the name of an option."""
    return f"--{name.replace('_', '-')}"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def options(kind: type[K]) -> type[K]:
    """Make a class with fields a class of options. Wrong values raise pydantic's `ValidationError`."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)
    return checked_dataclass(frozen=True, kw_only=True, config=config)(kind)  # type: ignore[return-value]


def option_fields(kind: type[Any]) -> dict[str, OptionField]:
    """The options of a class by name, in their order."""
    return {name: OptionField(name, info) for name, info in kind.__pydantic_fields__.items()}


def are_options(kind: object) -> bool:
    """Whether this is a class of options."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_fields__") and hasattr(kind, "__dataclass_fields__")


def make_options(kind: Callable[P, R], /, *args: P.args, **given: P.kwargs) -> R:
    """Create an instance of an options class. Raises `InvalidOption` for the first invalid option."""
    try:
        return kind(*args, **given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name, *inner = first["loc"]
        message = first["msg"]
        if first["type"] == "unexpected_keyword_argument":
            message = f"unknown option; {suggestion(str(name), [*kind.__pydantic_fields__])}"  # type: ignore[attr-defined]
        raise InvalidOption(str(name), f"{format_path(tuple(inner))}: {message}" if inner else message) from None


def suggestion(name: str, names: Sequence[str]) -> str:
    """Suggest the closest name, or list all names."""
    close = get_close_matches(name, names, 1)
    return f"did you mean {close[0]}?" if close else f"available: {', '.join(names) or 'none'}"


def takes(kind: Callable[P, K]) -> Callable[[Callable[[K], R]], Callable[P, R]]:
    """Let a function with an options object be called with keyword arguments, with completion and `help`."""

    def decorate(function: Callable[[K], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            return function(make_options(kind, *args, **given))

        fields = option_fields(kind)  # type: ignore[arg-type]
        parameters = [
            Parameter(
                each.name,
                Parameter.POSITIONAL_OR_KEYWORD if each.is_positional else Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=each.info.annotation,
            )
            for each in sorted(fields.values(), key=lambda each: not each.is_positional)
        ]
        call.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = (f"    {each.name}: {each.description}" for each in fields.values())
        call.__doc__ = "\n".join([f"{function.__doc__}\n\n    Options:", *lines])
        return call

    return decorate


def common_options(given: Any, kind: type[Any]) -> dict[str, Any]:
    """The given options that another class also has."""
    return {name: getattr(given, name) for name in option_fields(type(given)) if name in option_fields(kind)}


def stored_options(given: Any) -> Iterator[tuple[OptionField, Any]]:
    """The options that are stored in files, with their values."""
    return ((each, getattr(given, name)) for name, each in option_fields(type(given)).items() if each.option.stored)
