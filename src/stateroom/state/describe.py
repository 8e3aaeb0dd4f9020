"""Changes in words, for people who read a session's log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from pydantic_core import to_jsonable_python

from stateroom.errors import Path, format_path
from stateroom.state.codec import to_json
from stateroom.state.patch import apply

WIDTH = 60
"""Characters to which longer values are cut."""


def describe(state: Any, patch: Iterable[Any]) -> list[str]:
    """Apply a patch to plain data, and tell what each of its operations changed."""
    lines = []
    for operation in patch:
        kind, path, *needs = operation
        place = format_path(tuple(path))
        if kind == "set":
            lines += _set(state, tuple(path), needs[0])
        elif kind == "del":
            lines.append(f"{place}: {_before(state, path)} → gone")
        elif kind == "splice":
            lines += _splice(state, path, place, *needs)
        elif kind == "order":
            lines.append(_order(state, path, place, *needs))
        else:
            added, removed = needs
            lines.append(
                place + ":" + "".join(f" + {brief(m)}" for m in added) + "".join(f" - {brief(m)}" for m in removed)
            )
        apply(state, [operation])
    return lines


class Difference(NamedTuple):
    """One place at which two states differ."""

    place: Path
    kind: Literal["changed", "new", "gone"]
    before: Any
    """None if the place is new."""
    after: Any
    """None if it is gone."""

    def __str__(self) -> str:
        place = format_path(self.place) or "state"
        if self.kind == "new":
            return f"{place}: new, {brief(self.after)}"
        return f"{place}: {brief(self.before)} → {'gone' if self.kind == 'gone' else brief(self.after)}"


def differences(old: Any, new: Any) -> list[str]:
    """What differs between two states, as plain data, in words."""
    return [str(difference) for difference in diff(old, new)]


def diff(old: Any, new: Any, path: Path = ()) -> Iterator[Difference]:
    """What differs between two states, as plain data, place by place."""
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


def brief(value: Any, width: int = WIDTH) -> str:
    """A value on one short line."""
    text = json.dumps(value, default=readable, ensure_ascii=False)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def readable(value: Any) -> Any:
    """A state as JSON data, with what JSON lacks as text; members of a set in an order that does not change."""
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


def _before(state: Any, path: Path) -> str:
    for step in path:
        if isinstance(state, dict) and step not in state:
            return "nothing"
        state = state[step]
    return brief(state)


def _set(state: Any, path: Path, value: Any) -> list[str]:
    for step in path[:-1]:
        state = state[step]
    if isinstance(state, dict) and path[-1] not in state:
        return [f"{format_path(path)}: nothing → {brief(value)}"]
    return _replaced(state[path[-1]], value, path)


def _replaced(old: Any, new: Any, path: Path) -> list[str]:
    """A value that was replaced. Of a record, as frozen models are, only the fields that differ, unless all do."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        other = [name for name in new if any(diff(old[name], new[name]))]
        if 0 < len(other) < len(new):
            return [line for name in other for line in _replaced(old[name], new[name], (*path, name))]
    return [f"{format_path(path)}: {brief(old)} → {brief(new)}"]


def _order(state: Any, path: Path, place: str, order: list[int]) -> str:
    for step in path:
        state = state[step]
    removed = [f"{len(state) - len(order)} items removed"] if len(order) < len(state) else []
    moved = [f"{len(order)} items in a new order"] if order != sorted(order) else []
    return f"{place}: {', '.join(removed + moved)}"


def _splice(state: Any, path: Path, place: str, start: int, stop: int, values: list[Any]) -> list[str]:
    for step in path:
        state = state[step]
    if start == stop:
        where = "at its end" if start == len(state) else f"before [{start}]"
        return [f"{place}: {brief(values[0]) if len(values) == 1 else f'{len(values)} items'} added {where}"]
    if not values:
        return [
            f"{place}: {brief(state[start]) if stop - start == 1 else f'{stop - start} items'} removed from [{start}]"
        ]
    old, new = state[start:stop], values
    if len(old) == len(new) == 1:
        return _replaced(old[0], new[0], (*path, start))
    return [f"{place}: {len(old)} items from [{start}] replaced by {len(new)}"]
