"""Deep equality of two values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from stateroom.state.compiler import shape_of
from stateroom.state.shape import DictShape, ListShape, ModelShape, SetShape, Shape, TupleShape
from stateroom.state.union import UnionShape

NUMBERS = (bool, int, float)


def deep_equal(one: Any, other: Any) -> bool:
    """Compare values part by part, because authors can override `==` on a model, and 1 == True.

    Where that cannot make a difference, `==` is used, because it is much faster.
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return len(one) == len(other) and all(
            key in other and deep_equal(part, other[key]) for key, part in one.items()
        )
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(deep_equal, one, other))
    if issubclass(kind, BaseModel):
        plain = _has_plain_fields(shape_of(kind))
        if plain and one.__dict__ == other.__dict__:
            return True
        return all(deep_equal(one.__dict__[name], other.__dict__[name]) for name in kind.__pydantic_fields__)
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - not a number


def _has_plain_fields(shape: ModelShape) -> bool:
    if shape.plain is None:
        shape.plain = all(map(_is_plain, shape.fields.values()))
    return shape.plain


def _is_plain(shape: Shape) -> bool:
    """Whether values that are equal here are so in every part."""
    if isinstance(shape, UnionShape):
        numbers = [member for member in shape.members if member.bare in NUMBERS]
        return len(numbers) < 2 and all(map(_is_plain, shape.members))
    if isinstance(shape, ListShape | SetShape):
        return _is_plain(shape.item)
    if isinstance(shape, DictShape):
        return _is_plain(shape.value)
    if isinstance(shape, TupleShape):
        return all(map(_is_plain, shape.items))
    return type(shape) is Shape
