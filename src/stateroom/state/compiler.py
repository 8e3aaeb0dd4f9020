"""From annotations to shapes: each model class is compiled once, and a type that cannot be kept is refused by name."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    Discriminator,
    JsonValue,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    RootModel,
    Tag,
)
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from stateroom.errors import DefinitionError
from stateroom.state.shape import (
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    SetShape,
    Shape,
    TupleShape,
    UnionShape,
)
from stateroom.state.values import CONTAINERS, LEAVES

ALIASES = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))
"""Of typing_extensions, and of the `type` statement."""


def shape_of_model(model: type[BaseModel]) -> ModelShape:
    """The shape of a model class, compiled on first use and kept on the class."""
    known = model.__dict__.get("__stateroom_shape__")
    if known is None:
        compiler = _Compiler()
        known = compiler.model(model, model.__name__)
        for checked, shape in compiler.open.items():  # only now: a class is marked when all it reaches is good
            checked.__stateroom_shape__ = shape  # type: ignore[attr-defined]
    assert isinstance(known, ModelShape)
    return known


class _Compiler:
    """Compiles the models that refer to one another, so that a cycle meets itself."""

    def __init__(self) -> None:
        self.open: dict[type[BaseModel], ModelShape] = {}
        self.aliases: list[Any] = []

    def model(self, model: type[BaseModel], where: str) -> ModelShape:
        known: ModelShape | None = model.__dict__.get("__stateroom_shape__") or self.open.get(model)
        if known is not None:
            return known
        if not model.__pydantic_complete__:
            try:
                model.model_rebuild()
            except (PydanticUserError, PydanticUndefinedAnnotation) as error:
                raise DefinitionError(f"{where}: {error.message.splitlines()[0]}") from None
        _refuse_hidden_state(model, where)
        shape = self.open[model] = ModelShape(model)
        for name, field in model.model_fields.items():
            shape.fields[name] = self.field(field, f"{where}.{name}")
        return shape

    def field(self, field: FieldInfo, where: str) -> Shape:
        shape = self.annotation(field.annotation, where)
        return self._guard(shape, Annotated[field.annotation, field], [field])

    def annotation(self, annotation: Any, where: str) -> Shape:
        origin, args = get_origin(annotation), get_args(annotation)
        if annotation is JsonValue:
            return JsonShape(annotation)
        if origin is Annotated:
            inner, *metadata = args
            return self._guard(self.annotation(inner, where), annotation, metadata)
        if isinstance(annotation, ALIASES):
            if annotation in self.aliases:
                raise DefinitionError(
                    f"{where}: the alias {annotation} refers to itself; use a model that does, or JsonValue"
                )
            self.aliases.append(annotation)
            shape = self.annotation(annotation.__value__, where)
            self.aliases.pop()
            return shape
        if isinstance(annotation, NewType):
            return self.annotation(annotation.__supertype__, where)
        if origin in (Union, UnionType):
            return UnionShape(annotation, tuple(self.annotation(arg, where) for arg in args))
        if origin is Literal:
            if any(isinstance(choice, Enum) and not isinstance(choice, str | int) for choice in args):
                raise DefinitionError(
                    f"{where}: {_name(annotation)} would be read back as plain values; use the Enum itself"
                )
            return Shape(annotation)
        if annotation is None or annotation in LEAVES:
            return Shape(annotation)
        if origin in CONTAINERS:
            return self.container(annotation, origin, args, where)
        if isinstance(annotation, type):
            if issubclass(annotation, Enum):
                for choice in annotation:
                    if not _is_plain(choice.value):
                        raise DefinitionError(f"{where}: the value of {choice} cannot be stored")
                return Shape(annotation)
            if issubclass(annotation, BaseModel):
                return self.model(annotation, where)
        hint = " (say of what: for example list[str])" if annotation in CONTAINERS else ""
        raise DefinitionError(f"{where}: {_name(annotation)} cannot be kept in a state{hint}")

    def container(self, annotation: Any, origin: type, args: tuple[Any, ...], where: str) -> Shape:
        if origin is list:
            return ListShape(annotation, self.annotation(args[0], where))
        if origin is dict:
            key = self.annotation(args[0], where)
            if not _is_key(args[0]):
                raise DefinitionError(f"{where}: {_name(args[0])} cannot be a key; keys are str, int or an Enum")
            return DictShape(annotation, key, self.annotation(args[1], where))
        if origin is tuple:
            repeated = len(args) == 2 and args[1] is Ellipsis
            items = tuple(self.annotation(arg, where) for arg in (args[:1] if repeated else args))
            return TupleShape(annotation, items, repeated)
        item = self.annotation(args[0], where)
        if not item.leaf:
            raise DefinitionError(f"{where}: {_name(args[0])} can change, so it cannot be in a {origin.__name__}")
        return SetShape(annotation, item) if origin is set else Shape(annotation)

    @staticmethod
    def _guard(shape: Shape, annotation: Any, notes: Sequence[Any]) -> Shape:
        if isinstance(shape, UnionShape) and any(
            isinstance(note, Discriminator) or getattr(note, "discriminator", None) is not None for note in notes
        ):
            shape.annotation = annotation
            shape.ambiguous = False
        if not any(note.metadata if isinstance(note, FieldInfo) else _is_check(note) for note in notes):
            return shape
        if isinstance(shape, ModelShape):  # shared by all places that hold the model, so the guard needs its own
            shape = UnionShape(annotation, (shape,))
        shape.annotation = annotation
        shape.guarded = True
        return shape


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return any(isinstance(value, leaf) for leaf in LEAVES)


def _is_check(note: Any) -> bool:
    return not isinstance(note, str | Discriminator | Tag)


def _is_key(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_key(get_args(annotation)[0])
    if isinstance(annotation, NewType):
        return _is_key(annotation.__supertype__)
    if get_origin(annotation) is Literal:
        return all(type(choice) in (str, int) for choice in get_args(annotation))
    return annotation in (str, int) or (isinstance(annotation, type) and issubclass(annotation, Enum))


def _refuse_hidden_state(model: type[BaseModel], where: str) -> None:
    if issubclass(model, RootModel):
        raise DefinitionError(f"{where}: {model.__name__} is a RootModel; use the type that it wraps")
    if model.model_config.get("extra") == "allow":
        raise DefinitionError(f"{where}: {model.__name__} allows extra fields, which have no type; declare them")
    for name in model.__private_attributes__:
        raise DefinitionError(
            f"{where}: the private attribute {name!r} of {model.__name__} would be lost; make it a field"
        )


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
