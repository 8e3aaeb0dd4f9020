"""What may stand at each place of a state.

A `Shape` is compiled from an annotation, once. It refuses types that cannot be kept, gives the shape of each part, and
turns a value that a tool left there into one that is valid and shared with nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, JsonValue, RootModel, TypeAdapter, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from stateroom.errors import DefinitionError, InvalidState, Path

LEAVES = frozenset({str, int, float, bool, bytes, NoneType, datetime, date, timedelta, UUID, Decimal})
"""Types whose values never change; subclasses of Enum are leaves too."""

CONTAINERS = (list, dict, set, frozenset, tuple)


class Shape:
    """One place of a state: its annotation, and how a value for it is checked."""

    leaf = True
    """True when nothing that stands here can be changed in place."""

    guarded = False
    """True when the annotation checks a container as a whole (a length, a validator), so a change inside is checked too."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.annotation)

    def admit(self, value: Any, path: Path) -> Any:
        """A valid copy of `value` that no tool holds a handle to."""
        fresh = detach(value, path)
        try:
            return self.adapter.validator.validate_python(fresh, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path) from None

    def part(self, key: Any) -> Shape:
        """The shape of what stands at `key` within this place."""
        raise LookupError(key)

    def member(self, kind: type) -> Shape:
        """The shape that a value of type `kind` has here: itself, unless this is a union."""
        return self


class ListShape(Shape):
    leaf = False

    def __init__(self, annotation: Any, item: Shape) -> None:
        super().__init__(annotation)
        self.item = item

    def part(self, key: Any) -> Shape:
        return self.item


class DictShape(Shape):
    leaf = False

    def __init__(self, annotation: Any, key: Shape, value: Shape) -> None:
        super().__init__(annotation)
        self.key = key
        self.value = value

    def part(self, key: Any) -> Shape:
        return self.value


class SetShape(Shape):
    leaf = False

    def __init__(self, annotation: Any, item: Shape) -> None:
        super().__init__(annotation)
        self.item = item


class TupleShape(Shape):
    def __init__(self, annotation: Any, items: tuple[Shape, ...], repeated: bool) -> None:
        super().__init__(annotation)
        self.items = items
        self.repeated = repeated
        self.leaf = all(item.leaf for item in items)

    def part(self, key: Any) -> Shape:
        return self.items[0 if self.repeated else key]


class UnionShape(Shape):
    def __init__(self, annotation: Any, members: tuple[Shape, ...]) -> None:
        super().__init__(annotation)
        self.members = members
        self.leaf = all(member.leaf for member in members)
        models = [member for member in members if isinstance(member, ModelShape)]
        self.ambiguous = len(models) > 1

    def member(self, kind: type) -> Shape:
        found = [shape for shape in self.members if _origin(shape) is kind]
        return found[0] if len(found) == 1 else self

    def admit(self, value: Any, path: Path) -> Any:
        admitted = super().admit(value, path)
        if self.ambiguous and isinstance(admitted, BaseModel):
            again = self.adapter.validator.validate_python(plain(admitted), by_name=True, by_alias=False)
            if type(again) is not type(admitted):
                raise InvalidState(
                    path,
                    f"the fields of {type(admitted).__name__} also fit {type(again).__name__}, so it would be read back as that; "
                    "give the union a discriminator",
                )
        return admitted


class JsonShape(Shape):
    """pydantic's `JsonValue`: any nesting of JSON's own types."""

    leaf = False

    def part(self, key: Any) -> Shape:
        return self


class ModelShape(Shape):
    """A pydantic model: one shape per field, and the checks that its author wrote on fields and on the whole."""

    leaf = False

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(model)
        self.model = model
        self.fields: dict[str, Shape] = {}
        decorators = model.__pydantic_decorators__
        checks = list(decorators.model_validators.values())
        self.rules = [check.func for check in checks if _looks_at_model_only(check)]
        """Model validators that only look at the finished model; they run when something in it has changed."""
        self.guarded = len(self.rules) < len(checks)
        self.guards = {
            name
            for check in decorators.field_validators.values()
            for name in (model.model_fields if "*" in check.info.fields else check.info.fields)
        }
        """Fields that the author checks with a validator of the model."""

    @cached_property
    def field_checker(self) -> type[BaseModel]:
        """A model that checks one field at a time: the author's, less the checks of the whole."""
        if not self.model.__pydantic_decorators__.model_validators:
            return self.model
        validators: dict[str, Any] = {
            name: field_validator(*check.info.fields, mode=check.info.mode, check_fields=False)(check.func)
            for name, check in self.model.__pydantic_decorators__.field_validators.items()
        }
        fields: dict[str, Any] = {name: (field.annotation, field) for name, field in self.model.model_fields.items()}
        return create_model(
            self.model.__name__, __config__=self.model.model_config, __validators__=validators, **fields
        )

    def admit_field(self, name: str, value: Any, others: Mapping[str, Any], path: Path) -> Any:
        """A valid copy of `value` for the field `name` of a model whose fields are now `others`."""
        fresh = detach(value, path)
        checker = self.field_checker
        scratch = checker.__new__(checker)
        for slot, content in (
            ("__dict__", dict(others)),
            ("__pydantic_fields_set__", set()),
            ("__pydantic_extra__", None),
        ):
            object.__setattr__(scratch, slot, content)
        object.__setattr__(scratch, "__pydantic_private__", None)
        try:
            checker.__pydantic_validator__.validate_assignment(scratch, name, fresh, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path[:-1]) from None
        admitted = scratch.__dict__[name]
        part = self.fields[name]
        # Only a union's own check sees that a value could be read back as another member.
        return part.admit(admitted, path) if isinstance(part, UnionShape) and part.ambiguous else admitted

    def part(self, key: Any) -> Shape:
        return self.fields[key]


def shape_of_model(model: type[BaseModel]) -> ModelShape:
    """The shape of a model class, compiled on first use and kept on the class."""
    known = model.__dict__.get("__stateroom_shape__")
    if known is None:
        known = _Compiler().model(model, model.__name__)
    assert isinstance(known, ModelShape)
    return known


class _Compiler:
    """Compiles the models that refer to one another, so that a cycle meets itself."""

    def __init__(self) -> None:
        self.open: dict[type[BaseModel], ModelShape] = {}

    def model(self, model: type[BaseModel], where: str) -> ModelShape:
        known: ModelShape | None = model.__dict__.get("__stateroom_shape__") or self.open.get(model)
        if known is not None:
            return known
        _refuse_hidden_state(model, where)
        shape = self.open[model] = ModelShape(model)
        for name, field in model.model_fields.items():
            shape.fields[name] = self.field(field, f"{where}.{name}")
        # A class is marked only when all it reaches has been checked.
        model.__stateroom_shape__ = shape  # type: ignore[attr-defined]
        return shape

    def field(self, field: FieldInfo, where: str) -> Shape:
        shape = self.annotation(field.annotation, where)
        return self._guard(shape, Annotated[field.annotation, field], bool(field.metadata))

    def annotation(self, annotation: Any, where: str) -> Shape:
        origin, args = get_origin(annotation), get_args(annotation)
        if annotation is JsonValue:
            return JsonShape(annotation)
        if origin is Annotated:
            inner, *metadata = args
            checks = [note for note in metadata if not isinstance(note, FieldInfo) or note.metadata]
            return self._guard(self.annotation(inner, where), annotation, bool(checks))
        if isinstance(annotation, TypeAliasType):
            return self.annotation(annotation.__value__, where)
        if isinstance(annotation, NewType):
            return self.annotation(annotation.__supertype__, where)
        if origin in (Union, UnionType):
            return UnionShape(annotation, tuple(self.annotation(arg, where) for arg in args))
        if annotation is None or annotation in LEAVES or origin is Literal:
            return Shape(annotation)
        if origin in CONTAINERS:
            return self.container(annotation, origin, args, where)
        if isinstance(annotation, type):
            if issubclass(annotation, Enum):
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
    def _guard(shape: Shape, annotation: Any, guarded: bool) -> Shape:
        if not guarded:
            return shape
        if isinstance(shape, ModelShape):  # shared by all places that hold the model, so the guard needs its own
            shape = UnionShape(annotation, (shape,))
        shape.annotation = annotation
        shape.guarded = True
        return shape


def detach(value: Any, path: Path, _within: frozenset[int] = frozenset()) -> Any:
    """A deep copy of `value` in plain containers, with every model in it validated anew."""
    kind = type(value)
    if kind in LEAVES:
        return value
    if not isinstance(value, (BaseModel, *CONTAINERS)):
        return value
    if id(value) in _within:
        raise InvalidState(path, "a state cannot contain itself")
    within = _within | {id(value)}
    if isinstance(value, BaseModel):
        model = getattr(kind, "_draft_model", kind)
        fields = {name: detach(getattr(value, name), (*path, name), within) for name in model.model_fields}
        try:
            return model.__pydantic_validator__.validate_python(fields, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path) from None
    if isinstance(value, dict):
        return {key: detach(part, (*path, key), within) for key, part in value.items()}
    plain_kind = next(container for container in CONTAINERS if isinstance(value, container))
    return plain_kind(detach(part, (*path, index), within) for index, part in enumerate(value))


def plain(value: Any) -> Any:
    """The same data with every model as a dict of its fields."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).__pydantic_fields__}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def invalid(error: ValidationError, path: Path) -> InvalidState:
    """The first thing that pydantic found wrong, at its place in the state."""
    first = error.errors(include_url=False, include_context=False)[0]
    return InvalidState((*path, *first["loc"]), first["msg"])


def _origin(shape: Shape) -> Any:
    if isinstance(shape, ModelShape):
        return shape.model
    annotation = shape.annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) or annotation


def _looks_at_model_only(check: Any) -> bool:
    return check.info.mode == "after" and len(signature(check.func).parameters) == 1


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
