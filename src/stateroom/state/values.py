"""Values that a state can hold: immutable ones, and private copies of the others."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MappingView
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel, ValidationError

from stateroom.errors import InvalidState, Path

LEAVES: frozenset[type] = frozenset({str, int, float, bool, bytes, NoneType, datetime, date, timedelta, UUID, Decimal})
"""Types whose values never change; subclasses of Enum are leaves too."""

EXACT = LEAVES - {datetime}
"""Those of them whose values are stored and read as they are; a datetime's time zone may be of another type."""

MAX_DEPTH = 100
"""How many steps lead to a container at most: all that goes through a state does so by recursion."""

CONTAINERS = (list, dict, set, frozenset, tuple)
MODEL_OR_CONTAINER = (BaseModel, *CONTAINERS)

LAZY = (Iterator, MappingView, deque)
"""Types that pydantic accepts as a list without looking inside."""


def ensure_depth(path: Path) -> None:
    """Raise if a container may not stand at this place."""
    if len(path) > MAX_DEPTH:
        raise InvalidState(path[:1], f"a state can be nested at most {MAX_DEPTH} levels deep")


def is_plain(value: Any) -> bool:
    """Whether a value is a leaf as it should be, or a tuple of such."""
    kind = type(value)
    return kind in LEAVES or (kind is tuple and LEAVES.issuperset(map(type, value)))


def fill(model: BaseModel, fields: dict[str, Any], fields_set: set[str]) -> None:
    """Give a bare instance its content."""
    put = object.__setattr__
    put(model, "__dict__", fields)
    put(model, "__pydantic_fields_set__", fields_set)
    put(model, "__pydantic_extra__", None)
    put(model, "__pydantic_private__", None)


def detach(value: Any, path: Path, _within: frozenset[int] = frozenset()) -> Any:
    """A deep copy of `value` in plain containers, with every model in it validated anew."""
    kind = type(value)
    if kind in LEAVES:
        return value
    if not isinstance(value, MODEL_OR_CONTAINER):
        if isinstance(value, LAZY):
            value = list(cast(Iterable[Any], value))
        elif isinstance(value, Mapping):
            value = dict(value)
        else:
            return value
    if id(value) in _within:
        raise InvalidState(path, "a state cannot contain itself")
    ensure_depth(path)
    within = _within | {id(value)}
    if isinstance(value, BaseModel):
        model = kind.__dict__.get("_draft_model", kind)  # `getattr` takes pydantic's metaclass long to refuse
        parts = [(name, getattr(value, name)) for name in model.__pydantic_fields__]
        fields = {name: part if type(part) in LEAVES else detach(part, (*path, name), within) for name, part in parts}
        try:
            return model.__pydantic_validator__.validate_python(fields, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, fields) from None
    if isinstance(value, dict):
        return {key: detach(part, (*path, key), within) for key, part in value.items()}
    plain_kind = next(container for container in CONTAINERS if isinstance(value, container))
    return plain_kind(
        [part if type(part) in LEAVES else detach(part, (*path, index), within) for index, part in enumerate(value)]
    )


def invalid(error: ValidationError, path: Path, value: Any, first: Any = None) -> InvalidState:
    """The first thing that pydantic found wrong with `value`, or another that it did, at its place in the state."""
    first = first or error.errors(include_url=False, include_context=False)[0]
    missing = first["type"] == "missing"
    for step in first["loc"][: -1 if missing else None]:
        # pydantic's steps also name union members, tags and validators, which are not places of the state
        if isinstance(value, BaseModel):
            value = value.__dict__
        places: Iterable[Any] = range(len(value)) if isinstance(value, list | tuple) else value
        for key in places if isinstance(value, dict | list | tuple) else ():
            if step in (key, repr(key)):  # an Enum is named by its repr
                value, path = value[key], (*path, key)
                break
    problem = first["msg"]
    if not missing and type(first["input"]) in LEAVES:  # a whole model may hold what is not for all who read errors
        problem += f"; it is {reprlib.repr(first['input'])}"
    return InvalidState((*path, first["loc"][-1]) if missing else path, problem)
