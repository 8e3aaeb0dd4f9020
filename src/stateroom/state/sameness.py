"""Whether two values are equal in every part."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from stateroom.state.compiler import shape_of_model
from stateroom.state.shape import DictShape, ListShape, SetShape, Shape, TupleShape
from stateroom.state.union import UnionShape

NUMBERS = (bool, int, float)


class Sameness:
    """Compares values part by part: `==` is an author's word on a model, and takes 1 for True.

    Where neither can make a difference it is used all the same, for it is much faster.
    """

    def __init__(self) -> None:
        self._plain: dict[type, bool] = {}
        """Whether all parts are plain, by the class of a model."""

    def __call__(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        kind = type(one)
        if kind is not type(other):
            return False
        if self._plain.get(kind) and one.__dict__ == other.__dict__:
            return True
        if issubclass(kind, BaseModel):
            return self._same_fields(kind, one.__dict__, other.__dict__)
        if kind is dict:
            return len(one) == len(other) and all(key in other and self(part, other[key]) for key, part in one.items())
        if kind is list or kind is tuple:
            return len(one) == len(other) and all(map(self, one, other))
        return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - not a number

    def _same_fields(self, kind: type[BaseModel], one: dict[str, Any], other: dict[str, Any]) -> bool:
        if kind not in self._plain:
            self._plain[kind] = all(map(_is_plain, shape_of_model(kind).fields.values()))
        return all(self(one[name], other[name]) for name in kind.__pydantic_fields__)


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
