"""State that an environment keeps outside its state: on itself, on its class, or in its module."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from stateroom.environment import Environment
from stateroom.rollout.checking.finding import Fault
from stateroom.session.containment import contained

PLAIN = (list, dict, set, str, int, float, type(None))
"""What is looked at in a module; all else in it is not the environment's alone."""


class Held(NamedTuple):
    """A value that something has: which it is, and what it says of itself."""

    id: int
    text: str


Holds = Mapping[str, Held]
"""What there is, by how an author would write it."""


def held_by(environment: Environment[Any, Any]) -> Holds:
    """What an environment, its classes and its module have, but for what is made once when it is first needed."""
    return {place: Held(id(value), _text(value)) for place, value in _places(environment)}


def _places(environment: Environment[Any, Any]) -> Iterator[tuple[str, Any]]:
    kind = type(environment)
    once = {name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, cached_property)}
    yield from ((f"self.{name}", value) for name, value in vars(environment).items() if name not in once)
    for each in kind.__mro__[: kind.__mro__.index(Environment)]:
        for name, value in vars(each).items():
            if not (name.startswith("__") or inspect.isroutine(value) or isinstance(value, cached_property)):
                yield f"{each.__name__}.{name}", value
    module = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    yield from (
        (f"the module's {name}", value)
        for name, value in module.items()
        if not name.startswith("__") and isinstance(value, PLAIN)
    )


def _text(value: Any) -> str:
    try:
        with contained:
            return repr(value)
    except Exception as error:  # noqa: BLE001 - what an author's own class may raise
        return type(error).__name__


def changes(before: Holds, after: Holds) -> list[Fault]:
    """What was set, or has changed within, while episodes were played."""
    faults = []
    for place, value in after.items():
        old = before.get(place)
        if old is None or (old.id != value.id and old.text != value.text):
            before_that = ", or set it in __init__" if place.startswith("self.") else ""
            faults.append(Fault(f"{place} was set in an episode: keep it in the state{before_that}"))
        elif old.text != value.text:
            faults.append(Fault(f"{place} has changed in an episode: unless a cache, keep it in the state", False))
    return faults
