"""The schema of a state class: its version, and what stands at each of its places.

Two schemas are the same if data of one can be read as the other, field by field: names, types and choices count.
Defaults, descriptions and checks do not: what is stored has a value for every field, and is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from stateroom.state.codec import encode
from stateroom.state.shape import (
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    SetShape,
    Shape,
    TupleShape,
)
from stateroom.state.union import UnionShape


class Schema(NamedTuple):
    """What a state class looks like."""

    version: int
    fingerprint: str
    """Of the places below, in short."""
    places: dict[str, str]
    """The type at each place, as a text."""


def read_schema(version: int, shape: ModelShape) -> Schema:
    """The schema of a compiled class."""
    places = dict(_Reader().below(shape, ""))
    return Schema(version, fingerprint_of(places), places)


def fingerprint_of(places: dict[str, str]) -> str:
    """By what a schema is known; the order of its fields does not count."""
    return blake2b(encode(sorted(places.items())), digest_size=8).hexdigest()


def first_difference(old: dict[str, str], new: dict[str, str]) -> str | None:
    """The first place at which two schemas differ, in words."""
    for place, kind in new.items():
        if place not in old:
            return f"{place} ({kind}) is new"
        if old[place] != kind:
            return f"{place} was {old[place]} and is {kind}"
    return next((f"{place} ({kind}) is gone" for place, kind in old.items() if place not in new), None)


class _Reader:
    """Goes through a shape; a model that stands at several places is told of once, at the first of them."""

    def __init__(self) -> None:
        self.told: dict[ModelShape, str] = {}

    def place(self, shape: Shape, path: str) -> Iterator[tuple[str, str]]:
        """A place and all below it, each with the type there."""
        yield path, _kind(shape)
        yield from self.below(shape, path)

    def below(self, shape: Shape, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(shape, ModelShape):
            known = self.told.setdefault(shape, path)
            if known != path:
                yield f"{path}.*", f"as {known or 'the state'}"
                return
            for name in sorted(shape.fields):  # in whatever order they are declared
                yield from self.place(shape.fields[name], f"{path}.{name}" if path else name)
        elif isinstance(shape, ListShape):
            yield from self.place(shape.item, f"{path}[]")
        elif isinstance(shape, DictShape):
            yield from self.place(shape.value, f"{path}{{}}")
        elif isinstance(shape, TupleShape):
            for index, part in enumerate(shape.items):
                yield from self.place(part, f"{path}[{'' if shape.repeated else index}]")
        elif isinstance(shape, UnionShape):
            branches = [member for member in shape.members if not member.leaf]
            for index, member in enumerate(branches):
                yield from self.below(member, path if len(branches) == 1 else f"{path}|{index}")


def _kind(shape: Shape) -> str:
    """The type of a place, less what is told of the places below it."""
    if isinstance(shape, ModelShape):
        return "object"
    if isinstance(shape, ListShape):
        return "list"
    if isinstance(shape, DictShape):
        return f"dict by {_kind(shape.key)}"
    if isinstance(shape, SetShape):
        return f"{'frozenset' if shape.leaf else 'set'} of {_kind(shape.item)}"
    if isinstance(shape, TupleShape):
        return "tuple of any length" if shape.repeated else f"tuple of {len(shape.items)}"
    if isinstance(shape, UnionShape):
        return " or ".join(sorted({_kind(member) for member in shape.members}))
    return "json" if isinstance(shape, JsonShape) else _leaf(shape.bare)


def _leaf(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _leaf(arguments[0])
    if origin is Literal:
        return f"one of {_choices(arguments)}"
    if arguments:
        return f"{_leaf(origin)} of {' and '.join(map(_leaf, arguments))}"
    if annotation in (None, type(None)):
        return "nothing"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {_choices(tuple(choice.value for choice in annotation))}"
    if isinstance(annotation, type) and not issubclass(annotation, BaseModel):
        return annotation.__name__
    return str(annotation)


def _choices(values: tuple[Any, ...]) -> str:
    return ", ".join(sorted(map(repr, values)))
