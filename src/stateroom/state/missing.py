"""What stored data lacks: a field that is not there must not be filled in by its default, which nobody has stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stateroom.errors import Path
from stateroom.state.shape import (
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    Shape,
    TupleShape,
    UnionShape,
)

Place = tuple[Path, Any]
"""Where something stands, and the data there."""


def first_missing(data: Any, shape: ModelShape) -> Path | None:
    """A field of a model, at any depth, that plain data lacks. What is of another type is not looked at."""
    return _lacking([((), data)], shape)


def _lacking(places: list[Place], shape: Shape) -> Path | None:
    """The same for places of one shape: all records of a list are gone through as one, which is quicker."""
    if not places or not shape.nests:
        return None
    if isinstance(shape, UnionShape):
        return _first(_lacking_in_union(place, shape) for place in places)
    if isinstance(shape, ModelShape):
        places = [place for place in places if isinstance(place[1], dict)]
        for path, data in places:
            if not data.keys() >= shape.fields.keys():
                return (*path, next(name for name in shape.fields if name not in data))
    return _first(_lacking(parts, below) for parts, below in _below(places, shape))


def _below(places: list[Place], shape: Shape) -> Iterator[tuple[list[Place], Shape]]:
    """The places within places of one shape, again by shape."""
    if isinstance(shape, ModelShape):
        for name, field in shape.fields.items():
            if field.nests:
                yield [((*path, name), data[name]) for path, data in places], field
    elif isinstance(shape, DictShape):
        yield (
            [((*path, key), data[key]) for path, data in places if isinstance(data, dict) for key in data],
            shape.value,
        )
    elif isinstance(shape, TupleShape) and not shape.repeated:
        for index, item in enumerate(shape.items):
            yield [((*path, index), data[index]) for path, data in places if _is_row(data) and index < len(data)], item
    elif isinstance(shape, ListShape | TupleShape):
        rows = [(path, data) for path, data in places if _is_row(data)]
        yield [((*path, index), part) for path, data in rows for index, part in enumerate(data)], shape.part(0)


def _lacking_in_union(place: Place, shape: UnionShape) -> Path | None:
    """What data lacks to be of any of the members that it may be of."""
    found = [_lacking([place], member) for member in shape.members if _may_be(place[1], member)]
    return found[0] if found and None not in found else None


def _may_be(data: Any, shape: Shape) -> bool:
    if isinstance(shape, JsonShape):
        return True
    return isinstance(data, dict) if isinstance(shape, ModelShape | DictShape) else _is_row(data) and not shape.leaf


def _is_row(data: Any) -> bool:
    return isinstance(data, list | tuple)


def _first(found: Iterable[Path | None]) -> Path | None:
    return next((path for path in found if path is not None), None)
