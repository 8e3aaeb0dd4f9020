"""Events of a state, and the methods that apply them.

A state class with a method marked `@applies` changes by events only, so that it is at any time what its events have
made of the seeded one. The log has the events of a call beside its patch: to read a log needs no code of the author's
(the command line and a cold load use the patch), and a process with that code can see who did what, and fold the events
anew, with another class perhaps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isfunction, isgeneratorfunction, signature
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from stateroom.errors import DefinitionError, InvalidState, SchemaChanged
from stateroom.state.compiler import shape_of
from stateroom.state.schema import Migrations, Versioned

_MARK = "__stateroom_applies__"


class Event(Versioned, BaseModel):
    """An event: `class Deposited(Event)`, with fields of the types that a state can have.

    It is stored under a name, `class Deposited(Event, name="money_in")`, by default the class name in snake_case. When
    you change the fields of a class, give it a new version, `class Deposited(Event, version=2)`, and a migration from
    the previous one, to read the events in old logs.
    """

    __event_name__: ClassVar[str] = "event"
    __migrations__ = Migrations("Event", 1)

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()  # pydantic gives the class's keywords to the method below too

    @classmethod
    def __pydantic_init_subclass__(cls, name: str | None = None, version: int | None = None, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if name is not None and not (isinstance(name, str) and name and name.isprintable()):
            raise DefinitionError(
                f"{cls.__name__}: an event's name must be a text of printable characters, not {name!r}"
            )
        cls.__event_name__ = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        cls.__migrations__ = Migrations(cls.__name__, version, cls.__migrations__)
        # A name that is not defined yet, or a type variable: the check waits for the first use.
        if cls.__pydantic_complete__ and not cls.__pydantic_generic_metadata__["parameters"]:
            shape_of(cls)


S = TypeVar("S")
E = TypeVar("E", bound=Event)


def applies(event: type[E]) -> Callable[[Callable[[S, E], None]], Callable[[S, E], None]]:
    """Mark a method of a state that applies an event to it: `@applies(Deposited)`.

    It takes only the state, as `self`, and the event, and must be deterministic: the same events on the same state must
    give the same result.
    """
    if not (isinstance(event, type) and issubclass(event, Event)) or event is Event:
        raise DefinitionError(f"@applies takes an Event class, such as @applies(Deposited), not {event!r}")

    def mark(method: Callable[[S, E], None]) -> Callable[[S, E], None]:
        if not isfunction(method) or hasattr(method, _MARK):
            raise DefinitionError(f"@applies({event.__name__}) must mark a plain method, with one event per method")
        setattr(method, _MARK, event)
        return method

    return mark


class Applier(NamedTuple):
    """A method that applies an event to a state."""

    event: type[Event]
    method: Callable[[Any, Any], None]


Appliers = Mapping[str, Applier]
"""The methods that apply events to a state, by the names of the events."""


def find_appliers(state: type) -> Appliers:
    """The methods of a state class that are marked; `DefinitionError` if one cannot be used."""
    appliers: dict[str, Applier] = {}
    for base in reversed(state.__mro__):
        for name, member in list(vars(base).items()):  # to look at a class that waits for names may complete it
            event = getattr(member, _MARK, None)
            if event is not None:
                _check_method(f"{state.__name__}.{name}", member)
                appliers[name] = Applier(event, member)
            elif name in appliers:
                raise DefinitionError(
                    f"{state.__name__}.{name} overrides a method that applies {appliers[name].event.__name__}: "
                    f"mark it with @applies({appliers[name].event.__name__}) too"
                )
    by_event: dict[str, Applier] = {}
    for name, applier in appliers.items():
        known = by_event.setdefault(applier.event.__event_name__, applier)
        if known is not applier:
            _refuse_second(f"{state.__name__}.{name}", known, applier)
    return by_event


def _check_method(where: str, method: Callable[..., Any]) -> None:
    if iscoroutinefunction(method) or isgeneratorfunction(method) or isasyncgenfunction(method):
        raise DefinitionError(f"{where} applies an event, so it must be a plain method, not async or a generator")
    parameters = list(signature(method).parameters.values())
    plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 2 or not all(parameter.kind in plain for parameter in parameters):
        raise DefinitionError(f"{where} applies an event, so it must take exactly `self` and `event`")


def _refuse_second(where: str, known: Applier, applier: Applier) -> None:
    first, second = known.event, applier.event
    if first is second:
        raise DefinitionError(f"{where} and {known.method.__name__} both apply {first.__name__}; combine them")
    raise DefinitionError(
        f"{where} applies {second.__name__}, which is stored under the same name as {first.__name__}, "
        f"{first.__event_name__!r}; set another name: class {second.__name__}(Event, name=…)"
    )


def applier_of(state: type, appliers: Appliers, event: object) -> Callable[[Any, Any], None]:
    """The method that applies an event to a state; raises `DefinitionError` if there is none."""
    if not isinstance(event, Event):
        raise DefinitionError(f"{type(event).__name__} is not an event; derive the class from Event")
    known = appliers.get(event.__event_name__)
    if known is None or known.event is not type(event):
        kind = type(event).__name__
        raise DefinitionError(f"{state.__name__} does not apply {kind}; add a method marked @applies({kind})")
    return known.method


def event_facts(event: Event) -> list[Any]:
    """The stored form of an event: its name, its version and its fields."""
    return [event.__event_name__, event.__migrations__.version, event]


def read_event(state: type, appliers: Appliers, facts: Any) -> Event:
    """A stored event, by migrations if it is an old one; `SchemaChanged` if the current classes cannot read it."""
    name, version, fields = facts
    known = appliers.get(name)
    if known is None:
        raise SchemaChanged(
            f"{state.__name__} does not apply the stored event {name!r}: keep the class of each stored event, "
            f"class …(Event, name={name!r}), and a method of {state.__name__} that applies it"
        )
    event, shape = known.event, shape_of(known.event)
    newest, data = event.__migrations__.version, event.__migrations__.upgrade(fields, version)
    try:
        read: Event = shape.read(data) if version == newest else shape.adopt(data)
    except InvalidState as error:
        raise SchemaChanged(
            f"it is not a valid {event.__name__}: {error}. If the class has changed, add a new version and a "
            f"migration from version {newest}"
        ) from None
    return read
