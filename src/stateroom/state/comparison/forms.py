"""Forms: hashable stand-ins for values, equal when two values are equal in all that counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from stateroom.state.comparison.places import Place

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""Stands where there is nothing."""

Names = Mapping[Any, Hashable]
"""What ids of new records stand for."""

_NO_NAMES: Names = {}
_OWN = "own"


def form_of(value: Any, place: Place, names: Names = _NO_NAMES, own: Names = _NO_NAMES) -> Hashable:
    """The form of a value: without what is ignored, and with names in the place of ids.

    `own` has the ids of the new records that the value is in: what a record says of itself is the same in each.
    """
    kind = type(value)
    if kind is str or kind is int:
        return own.get(value) or names.get(value) or (kind, value)
    if issubclass(kind, BaseModel):
        fields = value.__dict__
        parts = [(fields[name], place.at(name)) for name in kind.__pydantic_fields__]
        return kind, tuple([form_of(part, where, names, own) for part, where in parts if not where.ignored])
    if kind is dict:
        return kind, _form_of_dict(value, place, names, own)
    if kind is list or kind is tuple:
        forms = () if (each := place.each).ignored else [form_of(part, each, names, own) for part in value]
        return kind, multiset(forms) if place.by_content else tuple(forms)
    if kind is set or kind is frozenset:
        return kind, frozenset(form_of(part, place.each, names, own) for part in value)
    if value != value:  # noqa: PLR0124 - not a number
        return kind, None
    return kind, value


def _form_of_dict(value: dict[Any, Any], place: Place, names: Names, own: Names) -> Hashable:
    each = place.each
    if each.ignored:
        return None
    if place.by_content:
        return multiset(form_of_entry(key, part, each, names, own) for key, part in value.items())
    return frozenset((form_of(key, each, names, own), form_of(part, each, names, own)) for key, part in value.items())


def form_of_entry(key: Any, value: Any, place: Place, names: Names = _NO_NAMES, own: Names = _NO_NAMES) -> Hashable:
    """The form of an entry whose key does not count, but for the name that it may have."""
    within = own if key is None else {**own, key: (_OWN, len(own))}
    return names.get(key), form_of(value, place, names, within)


def multiset(forms: Iterable[Hashable]) -> Hashable:
    return frozenset(Counter(forms).items())


def mentions_in(value: Any, place: Place, own: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """Every str and int in a value that may be the id of another record."""
    kind = type(value)
    if kind is str or kind is int:
        if value not in own:
            yield value
    elif issubclass(kind, BaseModel):
        for name in kind.__pydantic_fields__:
            if not (where := place.at(name)).ignored:
                yield from mentions_in(value.__dict__[name], where, own)
    elif kind is dict:
        for key, part in value.items():
            if place.by_content:
                yield from mentions_in(part, place.each, own | {key})
            else:
                yield from mentions_in(key, place, own)
                yield from mentions_in(part, place.each, own)
    elif kind in (list, tuple, set, frozenset):
        for part in value:
            yield from mentions_in(part, place.each, own)


def ids_in(value: Any, place: Place) -> Iterator[Any]:
    """The ids of the new records that a new value holds."""
    kind = type(value)
    if issubclass(kind, BaseModel):
        for name in kind.__pydantic_fields__:
            yield from ids_in(value.__dict__[name], place.at(name))
    elif kind is dict:
        if place.by_content:
            yield from value
        for part in value.values():
            yield from ids_in(part, place.each)
    elif kind is list or kind is tuple:
        for part in value:
            yield from ids_in(part, place.each)
