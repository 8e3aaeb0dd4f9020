"""Differences between what was expected and what was found, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from stateroom.errors import format_path
from stateroom.state.comparison.places import Place
from stateroom.state.descriptions import Difference, brief, brief_pair, diff, readable

ALIKE = 0.5
"""The share of equal fields from which on an unexpected record is told as a missing one gone wrong."""

WIDTH = 200
"""Characters to which longer records are cut."""


def shown(value: Any, place: Place, own: Any = None) -> Any:
    """What counts of a value, as JSON data; what a record says of its `own` id does not."""
    data = _counting(value, place)
    if own is not None and isinstance(value, BaseModel):
        data = {name: part for name, part in data.items() if type(part) is not type(own) or part != own}
    return readable(data)


def lines(missing: Iterable[Difference], extra: Iterable[Difference]) -> list[str]:
    """What differs, a line each."""
    told: list[str] = []
    others = list(extra)
    for each in missing:
        twin = _twin(each, others)
        if twin is not None:
            others.remove(twin)
            parts = diff(each.before, twin.after, twin.place)
            told += [_changed(part) for part in parts] or [_about_another(twin)]
        elif each.kind == "gone":
            told.append(f"{_where(each)}: missing {brief(each.before, WIDTH)}")
        elif each.kind == "new":
            told.append(f"{_where(each)}: expected to be gone, found {brief(each.after, WIDTH)}")
        else:
            told.append(_changed(each))
    for each in others:
        if each.kind == "gone":
            told.append(f"{_where(each)}: expected {brief(each.before, WIDTH)}, is gone")
        elif each.kind == "new":
            told.append(f"{_where(each)}: not expected, {brief(each.after, WIDTH)}")
        else:
            told.append(_changed(each))
    return told


def _where(difference: Difference) -> str:
    return format_path(difference.place) or "state"


def _about_another(difference: Difference) -> str:
    """What reads as it should, but its ids are those of other new records."""
    return f"{_where(difference)}: {brief(difference.after, WIDTH)} is about another new record than expected"


def _changed(difference: Difference) -> str:
    if difference.kind == "changed" and repr(difference.before) == repr(difference.after):  # 1 is not True
        return _about_another(difference)
    expected, found = brief_pair(difference.before, difference.after)
    expected = "nothing" if difference.kind == "new" else expected
    found = "nothing" if difference.kind == "gone" else found
    return f"{_where(difference)}: expected {expected}, found {found}"


def _twin(missing: Difference, extra: Iterable[Difference]) -> Difference | None:
    """A record that stands, it seems, where the missing one should."""
    if missing.kind != "gone" or not isinstance(missing.before, dict):
        return None
    rated = [
        (_likeness(missing.before, each.after), each)
        for each in extra
        if each.kind == "new" and each.place[:-1] == missing.place and isinstance(each.after, dict)
    ]
    likeness, best = max(rated, key=lambda pair: pair[0], default=(0.0, None))
    return best if likeness >= ALIKE else None


def _likeness(one: dict[str, Any], other: dict[str, Any]) -> float:
    names = one.keys() | other.keys()
    equal = [name in one and name in other and one[name] == other[name] for name in names]
    return equal.count(True) / max(len(names), 1)


def _counting(value: Any, place: Place) -> Any:
    """A copy of a value without what is ignored, and with models as dicts."""
    if isinstance(value, BaseModel):
        places = ((name, place.at(name)) for name in type(value).__pydantic_fields__)
        return {name: _counting(value.__dict__[name], where) for name, where in places if not where.ignored}
    if isinstance(value, dict | list | tuple) and place.each.ignored:
        return type(value)()
    if isinstance(value, dict):
        return {key: _counting(part, place.each) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_counting(part, place.each) for part in value)
    return value
