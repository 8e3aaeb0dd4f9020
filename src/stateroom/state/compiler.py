"""The compiler of shapes: each model class once, from its annotations; it names types it refuses."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    JsonValue,
    PlainValidator,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    RootModel,
    Tag,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType, is_typeddict

from stateroom.errors import BadData, DefinitionError, InvalidState
from stateroom.state.codec import decode, encode
from stateroom.state.shape import (
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    SetShape,
    Shape,
    TupleShape,
    is_enum,
    takes_info,
)
from stateroom.state.union import UnionShape
from stateroom.state.values import CONTAINERS, LEAVES

ARRAYS = ("array", "numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas", "polars", "pyarrow")
"""Modules whose types are arrays of numbers."""

PLAIN_TYPES = "str, int, float, bool, bytes"
"""The types that are always possible, for error messages."""

ALIASES = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))
"""Of typing_extensions, and of the `type` statement."""


def shape_of(model: type[BaseModel]) -> ModelShape:
    """The shape of a model class, compiled on first use and kept on the class."""
    known = model.__dict__.get("__stateroom_shape__")
    if known is None:
        compiler = _Compiler()
        known = compiler.model(model, model.__name__)
        compiler.ensure_unambiguous()
        for checked, shape in compiler.open.items():  # only now: a class is marked when all it reaches is good
            checked.__stateroom_shape__ = shape  # type: ignore[attr-defined]
    assert isinstance(known, ModelShape)
    return known


class _Compiler:
    """Compiles the models that refer to one another, so that a cycle meets itself."""

    def __init__(self) -> None:
        self.open: dict[type[BaseModel], ModelShape] = {}
        self.aliases: list[Any] = []
        self.unions: list[tuple[UnionShape, str]] = []
        self.config = ConfigDict()
        """Of the model whose fields are compiled."""
        self.is_part = False
        """Whether what is compiled is within a container of a field."""
        self.looks = False
        """Whether a validator of the field that is compiled may look at other fields."""

    def model(self, model: type[BaseModel], where: str) -> ModelShape:
        known: ModelShape | None = model.__dict__.get("__stateroom_shape__") or self.open.get(model)
        if known is not None:
            return known
        if not model.__pydantic_complete__:
            try:
                model.model_rebuild()
            except (PydanticUserError, PydanticUndefinedAnnotation) as error:
                raise DefinitionError(f"{where}: {error.message.splitlines()[0]}") from None
        _ensure_no_hidden_state(model, where)
        shape = self.open[model] = ModelShape(model)
        for name, field in model.model_fields.items():
            with self._now(config=model.model_config, is_part=False, looks=False):
                shape.fields[name] = self.field(field, f"{where}.{name}")
                if self.looks:
                    shape.context_validated_fields.add(name)
        return shape

    @contextmanager
    def _now(self, **about: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in about}
        vars(self).update(about)
        yield
        vars(self).update(before)

    def ensure_unambiguous(self) -> None:
        """Refuse a union whose members look the same once stored; called once all fields are known."""
        for union, where in self.unions:
            for why in union.mixed_up():
                raise DefinitionError(f"{where}: {why}")

    def field(self, field: FieldInfo, where: str) -> Shape:
        shape = self.annotation(field.annotation, where)
        return self._guard(shape, Annotated[field.annotation, field], [field], where)

    def annotation(self, annotation: Any, where: str) -> Shape:
        shape = self._annotation(annotation, where)
        if not isinstance(shape, ModelShape):
            shape.config = self.config
        return shape

    def _annotation(self, annotation: Any, where: str) -> Shape:
        origin, args = get_origin(annotation), get_args(annotation)
        if annotation is JsonValue:
            return JsonShape(annotation)
        if origin is Annotated:
            inner, *metadata = args
            return self._guard(self.annotation(inner, where), annotation, metadata, where)
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
            union = UnionShape(annotation, tuple(self.annotation(arg, where) for arg in args))
            self.unions.append((union, where))
            return union
        if origin is Literal:
            if any(isinstance(choice, Enum) and not isinstance(choice, str | int) for choice in args):
                raise DefinitionError(
                    f"{where}: {_name(annotation)} would be read back as a plain value; use the Enum itself"
                )
            return self.choice(Shape(annotation), [choice for choice in args if isinstance(choice, Enum)], where)
        if annotation is None or annotation in LEAVES:
            return Shape(annotation)
        if origin in CONTAINERS and (args or origin is tuple):
            return self.container(annotation, origin, args, where)
        if is_enum(annotation):
            return self.choice(Shape(annotation), list(annotation), where)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation, where)
        refusal = f"{where}: {_name(annotation)} cannot be stored in a state"
        raise DefinitionError(f"{refusal}; use {_alternative(annotation, origin or annotation)}")

    def choice(self, shape: Shape, choices: list[Any], where: str) -> Shape:
        """A place for members of an enum: each must be identified by its value."""
        for choice in choices:
            if self.config.get("use_enum_values"):
                raise DefinitionError(
                    f"{where}: with use_enum_values it holds a {type(choice).__name__} or its value, depending on how "
                    "it was set; drop use_enum_values, or declare the type of the values"
                )
            try:
                is_known = shape.read(decode(encode(choice))) is choice
            except (TypeError, ValueError, BadData, InvalidState):
                is_known = False
            if not (_is_plain(choice.value) and is_known):
                raise DefinitionError(f"{where}: the value of {choice} cannot be stored, or is not read back as it")
        return shape

    def container(self, annotation: Any, origin: type, args: tuple[Any, ...], where: str) -> Shape:
        with self._now(is_part=True):
            return self._container(annotation, origin, args, where)

    def _container(self, annotation: Any, origin: type, args: tuple[Any, ...], where: str) -> Shape:
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
            raise DefinitionError(f"{where}: {_name(args[0])} is mutable, so it cannot be in a {origin.__name__}")
        return SetShape(annotation, item)

    def _guard(self, shape: Shape, annotation: Any, notes: Sequence[Any], where: str) -> Shape:
        if isinstance(shape, UnionShape) and any(
            isinstance(note, Discriminator) or getattr(note, "discriminator", None) is not None for note in notes
        ):
            shape.annotation = annotation
        if any(_looks(check) for note in notes for check in (note.metadata if isinstance(note, FieldInfo) else [note])):
            if self.is_part:
                raise DefinitionError(
                    f"{where}: a validator of a part cannot take `info`, because a part changes without the whole; "
                    "put it on the field"
                )
            self.looks = True
        if not any(note.metadata if isinstance(note, FieldInfo) else _is_check(note) for note in notes):
            return shape
        if isinstance(shape, ModelShape):  # shared by all places that hold the model, so the guard needs its own
            shape = UnionShape(annotation, (shape,))
        shape.annotation = annotation
        shape.guarded = True
        return shape


def _alternative(annotation: Any, origin: Any) -> str:
    """What an author can write in place of a type that cannot be stored."""
    if origin in CONTAINERS:
        parts = {dict: "dict[str, int]", tuple: "tuple[int, ...]"}
        return f"a type with parameters, for example {parts.get(origin, f'{origin.__name__}[str]')}"
    if annotation in (Any, object):
        return "pydantic's JsonValue, or the exact type"
    if not isinstance(origin, type):
        return PLAIN_TYPES
    if is_dataclass(origin) or is_typeddict(origin) or hasattr(origin, "_fields"):
        return f"a model with the same fields: class {origin.__name__}(BaseModel)"
    if origin.__module__.partition(".")[0] in ARRAYS or issubclass(origin, bytearray | memoryview):
        return "a list of its numbers, or bytes"
    if issubclass(origin, PurePath):
        return "str"
    if issubclass(origin, Mapping):
        return "dict"
    if issubclass(origin, Set):
        return "set"
    if issubclass(origin, Iterable) and origin.__module__ in ("collections", "collections.abc", "typing"):
        return "list"
    if origin is Callable:
        return "a str that names the function"
    return f"{PLAIN_TYPES}, or a model with its fields"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return any(isinstance(value, leaf) for leaf in LEAVES)


def _is_check(note: Any) -> bool:
    return not isinstance(note, str | Discriminator | Tag)


def _looks(note: Any) -> bool:
    """Whether a note is a validator that may look at other fields."""
    if not isinstance(note, AfterValidator | BeforeValidator | PlainValidator | WrapValidator):
        return False
    return takes_info(note.func, "wrap" if isinstance(note, WrapValidator) else "after")


def _is_key(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_key(get_args(annotation)[0])
    if isinstance(annotation, NewType):
        return _is_key(annotation.__supertype__)
    if get_origin(annotation) is Literal:
        return all(type(choice) in (str, int) for choice in get_args(annotation))
    return annotation in (str, int) or (isinstance(annotation, type) and issubclass(annotation, Enum))


def _ensure_no_hidden_state(model: type[BaseModel], where: str) -> None:
    if issubclass(model, RootModel):
        raise DefinitionError(f"{where}: {model.__name__} is a RootModel; use the wrapped type")
    if model.model_config.get("extra") == "allow":
        raise DefinitionError(f"{where}: {model.__name__} allows extra fields, which have no type; declare them")
    for name in model.__private_attributes__:
        raise DefinitionError(
            f"{where}: the private attribute {name!r} of {model.__name__} would be lost; make it a field"
        )


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
