"""Unions: places for one of several types, each recognised by its stored form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Flag
from functools import cached_property
from typing import Any, Union, get_origin

from pydantic_core import CoreSchema, core_schema

from stateroom.state.shape import (
    UNKNOWN_FIELDS,
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    Schemas,
    SetShape,
    Shape,
    TupleShape,
    is_enum,
)
from stateroom.state.values import CONTAINERS


class UnionShape(Shape):
    def __init__(self, annotation: Any, members: tuple[Shape, ...]) -> None:
        super().__init__(annotation)
        flat = [inner for shape in members for inner in (shape.members if type(shape) is UnionShape else [shape])]
        # One of JSON is as good as two, which would be mixed without an end: the items of either may be both again.
        alike = {JsonShape if isinstance(shape, JsonShape) else shape: shape for shape in flat}
        self.members: tuple[Shape, ...] = tuple(alike.values())
        self.leaf = all(member.leaf for member in self.members)
        self.guarded = any(shape.guarded for shape in members if type(shape) is UnionShape)
        self.ordered = any(member.ordered for member in self.members)
        self.orderable_mutable = any(member.orderable_mutable for member in self.members)
        self._by_kind: dict[type, Shape] = {}

    def never_changes(self, seen: set[ModelShape]) -> bool:
        return all(member.never_changes(seen) for member in self.members)

    @cached_property
    def exact(self) -> frozenset[type]:
        return frozenset[type]().union(*(member.exact for member in self.members))

    @cached_property
    def trusted(self) -> frozenset[type]:
        known = [member.trusted for member in self.members if type(member) is Shape]
        is_free = self.annotation is self.bare and len(known) == len(self.members) and all(known)
        return frozenset[type]().union(*known) if is_free else frozenset()

    @property
    def models(self) -> list[ModelShape]:
        return [member for member in self.members if isinstance(member, ModelShape)]

    def member(self, kind: type) -> Shape:
        known = self._by_kind.get(kind)
        if known is None:
            known = self._by_kind[kind] = self._member(kind)
        return known

    def _member(self, kind: type) -> Shape:
        members = self.found(kind)
        if not members:
            return self
        return members[0] if len(members) == 1 else self._mixed(kind, members)

    def found(self, kind: type) -> list[Any]:
        """The members of which a value of this type may be."""
        shapes = [shape for shape in self.members if (get_origin(shape.bare) or shape.bare) is kind]
        return shapes + [shape for shape in self.members if isinstance(shape, JsonShape) and kind in (list, dict)]

    def _mixed(self, kind: type, found: list[Any]) -> Shape:
        """One shape for `list[A] | list[B]`: any part of either may change, and the whole is checked again."""
        mixed: Shape
        if kind is list:
            mixed = ListShape(self.annotation, self._either([shape.part(0) for shape in found]))
        elif kind is dict:
            keys, values = [shape.key for shape in found], [shape.part(None) for shape in found]
            mixed = DictShape(self.annotation, self._either(keys), self._either(values))
        elif kind in (set, frozenset):
            mixed = SetShape(kind[Any], self._either([shape.item for shape in found]))
            mixed.annotation = self.annotation
        elif kind is tuple:
            items = [item for shape in found for item in shape.items]
            mixed = TupleShape(self.annotation, (self._either(items),), True)
        else:
            return self
        mixed.guarded, mixed.config = True, self.config
        return mixed

    def _either(self, shapes: list[Shape]) -> Shape:
        if all(shape is shapes[0] for shape in shapes):
            return shapes[0]
        either = UnionShape(Union[tuple(shape.annotation for shape in shapes)], tuple(shapes))  # noqa: UP007
        either.config = self.config
        return either

    def schema(self, shared: Schemas) -> CoreSchema:
        leaves = [shape for shape in self.members if type(shape) in (Shape, JsonShape)]
        leaves.sort(key=lambda shape: shape.choices is not None)  # by type before by value: 1 is True to an enum
        kinds = [kind for kind in CONTAINERS if self.found(kind)]
        schemas = [shape.schema(shared) for shape in (*leaves, *map(self.member, kinds))]
        if self.models:
            schemas.append(_schema_of_models(self.models, shared))
        return schemas[0] if len(schemas) == 1 else core_schema.union_schema([*schemas], mode="left_to_right")

    def mixed_up(self) -> Iterator[str]:
        """The members that look the same once stored, and what to do."""
        for group in by_names(self.models):
            if len(group) > 1 and discriminator_of(group) is None:
                names = " and ".join(shape.model.__name__ for shape in group)
                yield f"{names} have the same fields; add a field kind: Literal['…'] to each, with different values"
        tables = [shape for shape in self.members if isinstance(shape, DictShape | JsonShape)]
        if self.models and tables:
            yield f"a {self.models[0].model.__name__} is stored as a dict, as is {_name(tables[0])}; use only one"
        enums = [shape for shape in self.members if shape.choices is not None]
        for number, shape in enumerate(enums):
            if is_enum(shape.bare):
                yield from self._taken_for_another(shape, [*enums[:number], *enums[number + 1 :]])
        for kind in CONTAINERS:
            if len(self.found(kind)) > 1 and not (kind is dict and self.models):
                mixed: Any = self.member(kind)
                parts = [mixed.key, mixed.value] if kind is dict else [mixed.items[0] if kind is tuple else mixed.item]
                for part in parts:
                    if isinstance(part, UnionShape):
                        yield from part.mixed_up()

    def _taken_for_another(self, enum: Shape, others: Sequence[Shape]) -> Iterator[str]:
        values = enum.choices or []
        kinds = {int} if issubclass(enum.bare, Flag) else {type(value) for value in values}
        for other in self.members:
            held = other.exact | ({get_origin(other.bare) or other.bare} & {tuple, frozenset, datetime})
            chosen = [choice for choice in other.choices or [] if other in others]
            if kinds & held or any(choice in values or (kinds == {int} and type(choice) is int) for choice in chosen):
                yield f"{_name(enum)} is stored by its value, which {_name(other)} can be too; use only one"


def _schema_of_models(shapes: list[ModelShape], shared: Schemas) -> CoreSchema:
    """Each model is recognised by the names of its fields, or else by the choice in a field."""
    groups = by_names(shapes)
    if len(groups) == 1:
        return _schema_of_group(groups[0], shared)
    number_of = {frozenset(group[0].fields): number for number, group in enumerate(groups)}
    return core_schema.tagged_union_schema(
        {number: _schema_of_group(group, shared) for number, group in enumerate(groups)},
        lambda data: number_of.get(frozenset(data)) if isinstance(data, dict) else None,
        custom_error_type=UNKNOWN_FIELDS,
        custom_error_message=f"Fields required of {' or '.join(shape.model.__name__ for shape in shapes)}",
    )


def _schema_of_group(group: list[ModelShape], shared: Schemas) -> CoreSchema:
    field = discriminator_of(group)
    if field is None:
        return group[0].schema(shared)
    choices = {choice: shape.schema(shared) for shape in group for choice in shape.fields[field].choices or []}
    return core_schema.tagged_union_schema(choices, field)


def by_names(shapes: Sequence[ModelShape]) -> list[list[ModelShape]]:
    """Models with the same names of fields, together."""
    groups: dict[frozenset[str], list[ModelShape]] = {}
    for shape in shapes:
        groups.setdefault(frozenset(shape.fields), []).append(shape)
    return list(groups.values())


def discriminator_of(group: Sequence[ModelShape]) -> str | None:
    """A field whose choices differ from model to model."""
    if len(group) > 1:
        for name in group[0].fields:
            choices = [choice for shape in group for choice in dict.fromkeys(shape.fields[name].choices or [shape])]
            if all(shape.fields[name].choices for shape in group) and len(set(choices)) == len(choices):
                return name
    return None


def _name(shape: Shape) -> str:
    return getattr(shape.bare, "__name__", str(shape.bare)) if not get_origin(shape.bare) else str(shape.bare)
