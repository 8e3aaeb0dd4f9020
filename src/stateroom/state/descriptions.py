"""Changes as data and in words, for people who read a session's log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import compress, count, zip_longest
from operator import ne
from typing import Any, Literal, NamedTuple, TypedDict

from pydantic_core import to_jsonable_python

from stateroom.errors import Path, format_path
from stateroom.state.codec import to_json
from stateroom.state.patch import apply

MAX_VALUE_CHARACTERS = 60
"""Characters to which longer values are cut."""

LEAD_CHARACTERS = 12
"""Characters that are shown of what two long values have in common before they differ."""

Kind = Literal["changed", "new", "gone"]


class ChangeData(TypedDict):
    """A change of a state, as JSON data."""

    place: list[str | int]
    """Keys of dicts are texts, and indices of lists are numbers."""
    kind: Kind
    before: Any
    """None if the place is new."""
    after: Any
    """None if it is gone."""
    text: str
    """The line for people; changes that one operation made share it."""


def describe(state: Any, patch: Iterable[Any]) -> list[ChangeData]:
    """Apply a patch to plain data, and say what each of its operations changed."""
    changes = []
    for operation in patch:
        kind, path, *needs = operation
        changes += [_data(difference, state, text) for difference, text in _described(state, kind, tuple(path), needs)]
        apply(state, [operation])
    return changes


def lines(changes: Iterable[ChangeData]) -> list[str]:
    """Changes in words."""
    return list(dict.fromkeys(change["text"] for change in changes))


class Difference(NamedTuple):
    """One place at which two states differ."""

    place: Path
    kind: Kind
    before: Any
    """None if the place is new."""
    after: Any
    """None if it is gone."""

    def __str__(self) -> str:
        place = format_path(self.place) or "state"
        if self.kind == "new":
            return f"{place}: new, {brief(self.after)}"
        if self.kind == "gone":
            return f"{place}: {brief(self.before)} → gone"
        return f"{place}: {' → '.join(brief_pair(self.before, self.after))}"


def differences(old: Any, new: Any) -> list[ChangeData]:
    """Return the differences between two states, as plain data."""
    return [_data(difference, old, str(difference)) for difference in diff(old, new)]


def diff(old: Any, new: Any, path: Path = ()) -> Iterator[Difference]:
    """Return the differences between two states, as plain data, place by place."""
    if type(old) is not type(new) or not isinstance(new, dict | list):
        if type(old) is not type(new) or (old != new and not (old != old and new != new)):  # noqa: PLR0124 - not a number
            yield Difference(path, "changed", old, new)
        return
    if isinstance(new, dict):
        yield from (Difference((*path, key), "gone", old[key], None) for key in old if key not in new)
        for key, value in new.items():
            if key not in old:
                yield Difference((*path, key), "new", None, value)
            else:
                yield from diff(old[key], value, (*path, key))
        return
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        yield from diff(before, after, (*path, index))
    yield from (Difference((*path, index), "gone", old[index], None) for index in range(len(new), len(old)))
    yield from (Difference((*path, index), "new", None, new[index]) for index in range(len(old), len(new)))


def brief(value: Any, width: int = MAX_VALUE_CHARACTERS) -> str:
    """A value on one short line."""
    return _cut(json.dumps(value, default=readable, ensure_ascii=False), width)


def brief_pair(one: Any, other: Any, width: int = MAX_VALUE_CHARACTERS) -> tuple[str, str]:
    """Two values on a short line each; if they are long, from shortly before they differ."""
    if isinstance(one, str) and isinstance(other, str):
        start = _parting(one, other, width)
        lead = "…" if start else ""
        return lead + brief(one[start:], width), lead + brief(other[start:], width)
    first, second = (json.dumps(value, default=readable, ensure_ascii=False) for value in (one, other))
    return cut_pair(first, second, width)


def cut_pair(one: str, other: str, width: int) -> tuple[str, str]:
    """Two texts of at most this width; if they are longer, from shortly before they differ."""
    start = _parting(one, other, width)
    first, second = (f"…{text[start:]}" if start else text for text in (one, other))
    return _cut(first, width), _cut(second, width)


def _parting(one: str, other: str, width: int) -> int:
    """Where to start so that the first difference of two texts is within a width; 0 if it is."""
    if max(len(one), len(other)) < width:
        return 0
    alike = next(compress(count(), map(ne, one, other)), min(len(one), len(other)))
    return alike - LEAD_CHARACTERS if alike - LEAD_CHARACTERS > LEAD_CHARACTERS else 0


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


_JSON = frozenset({str, int, bool, type(None)})


def readable(value: Any) -> Any:
    """A state as JSON data, with what JSON lacks as text; members of a set in an order that does not change."""
    if type(value) in _JSON:
        return value
    if isinstance(value, dict):
        return {str(key): readable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [readable(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((readable(part) for part in value), key=_rank)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return to_jsonable_python(value, bytes_mode="base64")


def _rank(part: Any) -> tuple[float, bytes]:
    """Numbers by their size, before all else by its text."""
    return (part if isinstance(part, int | float) else math.inf, to_json(part))


def _data(difference: Difference, old: Any, text: str) -> ChangeData:
    """A difference as JSON data. The state before it distinguishes keys from indices."""
    place: list[str | int] = []
    for number, step in enumerate(difference.place):
        old = old[difference.place[number - 1]] if number else old
        place.append(str(step) if isinstance(old, dict) else readable(step))
    before, after = readable(difference.before), readable(difference.after)
    return {"place": place, "kind": difference.kind, "before": before, "after": after, "text": text}


Described = Iterator[tuple[Difference, str]]
"""Differences, each with its line."""


def _described(state: Any, kind: str, path: Path, needs: list[Any]) -> Described:
    """The changes that an operation of a patch will make."""
    place = format_path(path)
    owner = state
    for step in path[:-1] if kind in ("set", "del") else path:
        owner = owner[step]
    if kind == "splice":
        yield from _splice(owner, path, *needs)
    elif kind == "order":
        yield Difference(path, "changed", owner, [owner[index] for index in needs[0]]), _order(owner, place, *needs)
    elif kind == "members":
        added, removed = needs
        text = place + ":" + "".join(f" + {brief(m)}" for m in added) + "".join(f" - {brief(m)}" for m in removed)
        yield from ((Difference((*path, member), "new", None, member), text) for member in added)
        yield from ((Difference((*path, member), "gone", member, None), text) for member in removed)
    elif kind == "del":
        old = owner.get(path[-1])
        yield Difference(path, "gone", old, None), f"{place}: {brief(old) if path[-1] in owner else 'nothing'} → gone"
    elif isinstance(owner, dict) and path[-1] not in owner:
        yield Difference(path, "new", None, needs[0]), f"{place}: nothing → {brief(needs[0])}"
    else:
        yield from _replaced(owner[path[-1]], needs[0], path)


def _replaced(old: Any, new: Any, path: Path) -> Described:
    """A value that was replaced. Of a record, as frozen models are, only the fields that differ, unless all do."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        other = [name for name in new if any(diff(old[name], new[name]))]
        if 0 < len(other) < len(new):
            for name in other:
                yield from _replaced(old[name], new[name], (*path, name))
            return
    difference = Difference(path, "changed", old, new)
    yield difference, str(difference)


def _order(items: list[Any], place: str, order: list[int]) -> str:
    removed = [f"{len(items) - len(order)} items removed"] if len(order) < len(items) else []
    moved = [f"{len(order)} items in a new order"] if order != sorted(order) else []
    return f"{place}: {', '.join(removed + moved)}"


def _splice(items: list[Any], path: Path, start: int, stop: int, new: list[Any]) -> Described:
    place, old = format_path(path), items[start:stop]
    if len(old) == len(new) == 1:
        yield from _replaced(old[0], new[0], (*path, start))
        return
    if not old:
        where = "at its end" if start == len(items) else f"before [{start}]"
        text = f"{place}: {brief(new[0]) if len(new) == 1 else f'{len(new)} items'} added {where}"
    elif not new:
        text = f"{place}: {brief(old[0]) if len(old) == 1 else f'{len(old)} items'} removed from [{start}]"
    else:
        text = f"{place}: {len(old)} items from [{start}] replaced by {len(new)}"
    for number, (before, after) in enumerate(zip_longest(old, new)):
        kind: Kind = "new" if number >= len(old) else "gone" if number >= len(new) else "changed"
        yield Difference((*path, start + number), kind, before, after), text
