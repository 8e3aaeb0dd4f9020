"""Shapes: the types of value at each place of a state.

A `Shape` is compiled from an annotation, once. It gives the shape of each part, turns a value that a tool left there
into one that is valid and shared with nobody, and reads stored data without running a line of the author's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, partial
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model, field_validator
from pydantic_core import CoreConfig, CoreSchema, SchemaValidator, core_schema

from stateroom.errors import InvalidState, Path
from stateroom.state.codec import decode, encode
from stateroom.state.values import EXACT, LEAVES, detach, ensure_depth, fill, invalid, is_plain

Schemas = dict[str, CoreSchema]
"""Parts of a reader that stand at several places, by name."""

BASE64 = CoreConfig(val_json_bytes="base64")
"""How bytes are written in JSON: as `readable` writes them."""


class Shape:
    """One place of a state: its annotation, how a value for it is checked, and how stored data is read."""

    leaf = True
    """Whether values here cannot be changed in place."""

    guarded = False
    """Whether a container is checked as a whole (a length, a validator), so a change inside is checked too."""

    ordered = True
    """Whether values here may define `<`, so C code (`heapq`) may move them unseen."""

    orderable_mutable = False
    """Whether values here are mutable, but likely to be on a heap: a model that defines `<`, a tuple."""

    config: ConfigDict | None = None
    """That of the model which declares the place: it acts on a part as on the whole field."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = self.bare = NoneType if annotation is None else annotation
        """The annotation without the checks that were added to it."""

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        kind = get_args(self.annotation)[0] if get_origin(self.annotation) is Annotated else self.annotation
        of_model = isinstance(kind, type) and issubclass(kind, BaseModel)  # which has a config of its own
        return TypeAdapter(self.annotation, config=None if of_model else self.config)

    @cached_property
    def trusted(self) -> frozenset[type]:
        """The types of which every value is valid here, and read as it is."""
        config = self.config or {}
        limited = any(name.startswith("str_") for name in config) or config.get("allow_inf_nan") is False
        is_free = self.annotation is self.bare and self.bare is not Decimal and not limited
        return self.exact if is_free else frozenset()

    @cached_property
    def exact(self) -> frozenset[type]:
        """The types whose values, once they are valid here, are read as they are."""
        return frozenset({self.bare}) & EXACT if isinstance(self.bare, type) else frozenset()

    @cached_property
    def fixed(self) -> bool:
        """True when nothing that stands here, nor anything in it, can change: a leaf, or frozen models and tuples."""
        return self.never_changes(set())

    def never_changes(self, seen: set[ModelShape]) -> bool:
        """Whether it is fixed, if the models in `seen`, in which it stands, are."""
        return self.leaf

    def validate_copy(self, value: Any, path: Path) -> Any:
        """A valid copy of `value` that no tool has a reference to, exactly as it would be read from the store."""
        if type(value) in self.trusted:
            return value
        return self.freeze(self.validate(value if type(value) in LEAVES else detach(value, path), path), path)

    def validate(self, value: Any, path: Path) -> Any:
        """The valid form of a value that holds no drafts; models in it are taken as they are."""
        try:
            return self.adapter.validator.validate_python(value, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, value) from None

    def freeze(self, value: Any, path: Path) -> Any:
        """The value that is read after a valid value is stored here; one that would be read as another is refused."""
        if type(value) in self.exact:
            return value
        return self.read(_stored(value, self, path), path)

    def parse(self, text: bytes, path: Path) -> Any:
        """The value of a JSON text, validated by its type; bytes are base64."""
        try:
            return self.parser.validate_json(text, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, json.loads(text)) from None

    @cached_property
    def parser(self) -> SchemaValidator:
        return SchemaValidator(_with_base64(self.adapter.core_schema), BASE64, _use_prebuilt=False)

    def read(self, data: Any, path: Path = ()) -> Any:
        """The value of stored data; runs no code of the author."""
        try:
            return self.reader.validate_python(data)
        except ValidationError as error:
            # Of a union, the member that matched the data furthest reports the error.
            furthest = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
            raise invalid(error, path, data, furthest) from None

    @cached_property
    def reader(self) -> SchemaValidator:
        shared: Schemas = {}
        schema = self.schema(shared)
        if shared:
            schema = core_schema.definitions_schema(schema, list(shared.values()))
        # Else a model is read by the validator that its class has, with all that the author wrote.
        return SchemaValidator(schema, _use_prebuilt=False)

    def schema(self, shared: Schemas) -> CoreSchema:
        """How pydantic's core reads stored data here: each type as it is, an enum by its value."""
        if self.bare in LEAF_SCHEMAS:
            return LEAF_SCHEMAS[self.bare]
        if get_origin(self.bare) is Literal:
            return core_schema.literal_schema(list(get_args(self.bare)))
        enum: Any = self.bare
        if issubclass(enum, Flag):  # it has members for any sum of others
            return core_schema.no_info_plain_validator_function(enum)
        return core_schema.enum_schema(enum, list(enum))

    @property
    def choices(self) -> list[Any] | None:
        """The values that can be stored here, if an enum or a literal restricts them."""
        if get_origin(self.bare) is Literal:
            return [choice.value if isinstance(choice, Enum) else choice for choice in get_args(self.bare)]
        enum: Any = self.bare
        return [choice.value for choice in enum] if is_enum(enum) else None

    def part(self, key: Any) -> Shape:
        """The shape of what stands at `key` within this place."""
        raise LookupError(key)

    def member(self, kind: type) -> Shape:
        """The shape that a value of type `kind` has here: itself, unless this is a union."""
        return self


LEAF_SCHEMAS: dict[Any, CoreSchema] = {
    NoneType: core_schema.none_schema(),
    str: core_schema.str_schema(strict=True),
    bool: core_schema.bool_schema(strict=True),
    int: core_schema.int_schema(strict=True),
    float: core_schema.is_instance_schema(float),  # a strict float takes an int too
    bytes: core_schema.bytes_schema(strict=True),
    datetime: core_schema.datetime_schema(strict=True),
    date: core_schema.date_schema(strict=True),
    timedelta: core_schema.timedelta_schema(strict=True),
    UUID: core_schema.uuid_schema(strict=True),
    Decimal: core_schema.decimal_schema(strict=True, allow_inf_nan=True),
}


def _with_base64(schema: Any) -> Any:
    """A pydantic schema in whose models, each of which has a config of its own, bytes are base64."""
    if type(schema) is dict:
        made = {name: _with_base64(part) for name, part in schema.items()}
        return {**made, "config": {**made.get("config", {}), **BASE64}} if made.get("type") == "model" else made
    return [_with_base64(part) for part in schema] if type(schema) is list else schema


def is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _stored(value: Any, shape: Shape, path: Path) -> Any:
    """A value as it is decoded from its bytes: models are dicts, enums their values, and all leaves of plain types."""
    kind = type(value)
    if kind in EXACT or (kind is datetime and (value.tzinfo is None or value.tzinfo is UTC)):
        return value
    if kind is list or kind is tuple:
        return kind(_stored_parts(enumerate(value), shape.member(kind), path).values())
    if kind is dict:
        parts = _stored_parts(value.items(), shape.member(kind), path)
        return {_stored(key, shape, path): part for key, part in parts.items()}
    if isinstance(value, BaseModel):
        declared = shape.member(kind)
        if not isinstance(declared, ModelShape) or declared.model is not kind:
            name = getattr(declared.bare, "__name__", declared.bare)
            raise InvalidState(path, f"a {kind.__name__} would be read back as a {name}; declare it in a union")
        fields = value.__dict__
        return _stored_parts([(name, fields[name]) for name in declared.fields], declared, path)
    if isinstance(value, Enum) and type(value.value) in EXACT:
        return value.value
    try:
        return decode(encode(value))
    except (TypeError, ValueError) as error:
        raise InvalidState(path, str(error)) from None


def _stored_parts(parts: Iterable[tuple[Any, Any]], shape: Shape, path: Path) -> dict[Any, Any]:
    ensure_depth(path)
    try:
        return {
            key: part if type(part) in EXACT else _stored(part, shape.part(key), (*path, key)) for key, part in parts
        }
    except LookupError:  # a validator has made something else of it
        raise InvalidState(path, f"it does not have the declared type, {shape.annotation}") from None


class ListShape(Shape):
    leaf = False

    def __init__(self, annotation: Any, item: Shape) -> None:
        super().__init__(annotation)
        self.item = item

    def schema(self, shared: Schemas) -> CoreSchema:
        return core_schema.list_schema(self.item.schema(shared), strict=True)

    def part(self, key: Any) -> Shape:
        return self.item


class DictShape(Shape):
    leaf = False
    ordered = False

    def __init__(self, annotation: Any, key: Shape, value: Shape) -> None:
        super().__init__(annotation)
        self.key = key
        self.value = value

    def schema(self, shared: Schemas) -> CoreSchema:
        return core_schema.dict_schema(self.key.schema(shared), self.value.schema(shared), strict=True)

    def part(self, key: Any) -> Shape:
        return self.value


class SetShape(Shape):
    """A set, or a frozenset, which is a leaf."""

    def __init__(self, annotation: Any, item: Shape) -> None:
        super().__init__(annotation)
        self.item = item
        self.leaf = get_origin(annotation) is frozenset

    def schema(self, shared: Schemas) -> CoreSchema:
        make = core_schema.frozenset_schema if self.leaf else core_schema.set_schema
        return make(self.item.schema(shared), strict=True)


class TupleShape(Shape):
    def __init__(self, annotation: Any, items: tuple[Shape, ...], repeated: bool) -> None:
        super().__init__(annotation)
        self.items = items
        self.repeated = repeated
        self.leaf = all(item.leaf for item in items)
        self.orderable_mutable = not self.leaf

    def never_changes(self, seen: set[ModelShape]) -> bool:
        return all(item.never_changes(seen) for item in self.items)

    def schema(self, shared: Schemas) -> CoreSchema:
        items = [item.schema(shared) for item in self.items]
        return core_schema.tuple_schema(items, variadic_item_index=0 if self.repeated else None, strict=True)

    def part(self, key: Any) -> Shape:
        return self.items[0 if self.repeated else key]


class JsonShape(Shape):
    """pydantic's `JsonValue`: any nesting of JSON's own types."""

    leaf = False
    exact = frozenset({str, int, float, bool, NoneType})

    @cached_property
    def key(self) -> Shape:
        return Shape(str)

    def schema(self, shared: Schemas) -> CoreSchema:
        name = "json"
        itself = core_schema.definition_reference_schema(name)
        leaves = [LEAF_SCHEMAS[kind] for kind in (str, int, float, bool, NoneType)]
        rows = core_schema.list_schema(itself, strict=True)
        tables = core_schema.dict_schema(LEAF_SCHEMAS[str], itself, strict=True)
        shared[name] = core_schema.union_schema([*leaves, rows, tables], mode="left_to_right", ref=name)
        return itself

    def part(self, key: Any) -> Shape:
        return self


class ModelShape(Shape):
    """A pydantic model: one shape per field, and the checks that its author wrote on fields and on the whole."""

    leaf = False

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(model)
        self.model = model
        self.ordered = self.orderable_mutable = model.__lt__ is not object.__lt__ or model.__gt__ is not object.__gt__  # type: ignore[operator]
        self.fields: dict[str, Shape] = {}
        self.draft_class: type | None = None
        """The class of the model's drafts, once there was one."""
        self.plain: bool | None = None
        """Whether models with equal fields are equal in every part, once that was asked."""
        decorators = model.__pydantic_decorators__
        checks = list(decorators.model_validators.values())
        self.rules = [check.func for check in checks if _looks_at_model_only(check)]
        """Model validators that only look at the finished model; they run when something in it has changed."""
        self.guarded = len(self.rules) < len(checks)
        self.guards: set[str] = set()
        """Fields that the author checks with a validator of the model."""
        self.context_validated_fields: set[str] = set()
        """Fields with a validator that may look at the fields before them: it runs when one of those has changed."""
        for check in decorators.field_validators.values():
            names = model.model_fields if "*" in check.info.fields else check.info.fields
            self.guards.update(names)
            if takes_info(check.func, check.info.mode):
                self.context_validated_fields.update(names)

    def schema(self, shared: Schemas) -> CoreSchema:
        name = f"{self.model.__qualname__} {id(self)}"
        if name not in shared:
            shared[name] = core_schema.any_schema()  # until it is known: it may be within itself
            fields = {field: core_schema.model_field(part.schema(shared)) for field, part in self.fields.items()}
            inner = core_schema.model_fields_schema(fields, extra_behavior="forbid")
            shared[name] = core_schema.model_schema(self.model, inner, ref=name)
        return core_schema.definition_reference_schema(name)

    def adopt(self, data: Any) -> Any:
        """A state from data that other code than this has written, or a migration: only this is validated on reading.

        A field that it lacks is not filled in by its default, which nobody has stored.
        """
        try:
            data = self.reader.validate_python(data)
        except ValidationError as error:
            if lacking := [each for each in error.errors() if each["type"] in ("missing", UNKNOWN_FIELDS)]:
                raise invalid(error, (), data, lacking[0]) from None
        return self.validate_copy(data, ())

    @cached_property
    def field_checker(self) -> type[BaseModel]:
        """A model that checks one field at a time: the author's, less the checks of the whole, and never frozen."""
        if self.settable == self.fields.keys() and not self.model.__pydantic_decorators__.model_validators:
            return self.model
        validators: dict[str, Any] = {
            name: field_validator(*check.info.fields, mode=check.info.mode, check_fields=False)(
                staticmethod(partial(getattr(self.model, check.cls_var_name)))
            )
            for name, check in self.model.__pydantic_decorators__.field_validators.items()
        }
        fields: dict[str, Any] = {}
        for name, field in self.model.model_fields.items():
            free = copy(field)
            free.frozen = False
            fields[name] = (field.annotation, free)
        config = ConfigDict(**{**self.model.model_config, "frozen": False})
        return create_model(self.model.__name__, __config__=config, __validators__=validators, **fields)

    def validate_copy(self, value: Any, path: Path) -> Any:
        if type(value) is not self.model or not all(map(is_plain, value.__dict__.values())):
            return super().validate_copy(value, path)
        fields = value.__dict__
        if len(fields) > len(self.fields):  # it holds values of cached properties
            fields = {name: fields[name] for name in self.fields if name in fields}
        try:  # none of its parts needs to be copied
            made = self.model.__pydantic_validator__.validate_python(fields, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, value) from None
        return self.freeze(made, path)

    def admit_field(self, name: str, value: Any, before: Mapping[str, Any], path: Path) -> Any:
        """A valid copy of `value` for the field `name`; `before` are the fields that its validator may look at."""
        part, check = self.fields[name], self.leaf_checks.get(name)
        if check is None or not (type(value) in LEAVES or is_plain(value)):
            return part.freeze(self.validate_field(name, detach(value, path), before, path), path)
        if type(value) in part.trusted:
            return value
        try:
            return part.freeze(check(value), path)
        except ValidationError as error:
            raise invalid(error, path, value) from None

    @cached_property
    def leaf_checks(self) -> dict[str, Callable[[Any], Any]]:
        """A quicker check for each field that holds a leaf and has no validator of the model's."""
        config = self.model.model_config
        return {
            name: TypeAdapter(field.rebuild_annotation(), config=config).validator.validate_python
            for name, field in self.model.model_fields.items()
            if self.fields[name].leaf and name not in self.guards | self.context_validated_fields
        }

    def validate_field(self, name: str, value: Any, before: Mapping[str, Any], path: Path) -> Any:
        """The valid form of a field's value that holds no drafts; models in it are taken as they are."""
        checker = self.field_checker
        scratch = object.__new__(checker)
        fill(scratch, dict(before), set())
        try:
            checker.__pydantic_validator__.validate_assignment(scratch, name, value, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path[:-1], {name: value}) from None
        return scratch.__dict__[name]

    @cached_property
    def settable(self) -> frozenset[str]:
        """The fields that may be assigned."""
        if self.model.model_config.get("frozen"):
            return frozenset()
        return frozenset(name for name, field in self.model.model_fields.items() if not field.frozen)

    @cached_property
    def trusted_fields(self) -> dict[str, frozenset[type]]:
        """By field: the types of which every value is valid there as it is."""
        return {name: self.fields[name].trusted for name in self.leaf_checks}

    def changed(self, model: BaseModel, changes: Mapping[str, Any]) -> BaseModel:
        """A copy of a model with other values, which are valid, in some fields."""
        fields = model.__dict__
        if len(fields) > len(self.fields):  # it holds values of cached properties, of what it was
            fields = {name: fields[name] for name in self.fields}
        made = object.__new__(self.model)
        fill(made, {**fields, **changes}, model.__pydantic_fields_set__)
        return made

    @cached_property
    def is_checked_by_fields(self) -> bool:
        """Whether it is fixed, and no check of the author's may look at more than one field."""
        return self.fixed and not (self.guarded or self.rules or self.guards or self.context_validated_fields)

    def never_changes(self, seen: set[ModelShape]) -> bool:
        if self in seen:
            return True
        seen.add(self)
        frozen = bool(self.model.model_config.get("frozen")) and not self.model.__private_attributes__
        return frozen and all(part.never_changes(seen) for part in self.fields.values())

    @cached_property
    def branches(self) -> list[str]:
        """The fields in which something can change in place."""
        return [name for name, part in self.fields.items() if not part.leaf]

    def part(self, key: Any) -> Shape:
        return self.fields[key]


UNKNOWN_FIELDS = "unknown_fields"
"""The type of the error when the fields of stored data are of no model in a union."""


def takes_info(validator: Callable[..., Any], mode: str) -> bool:
    """Whether a validator asks for `info`, with which it can look at the fields before its own."""
    try:
        parameters = signature(validator).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return False
    plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in plain and each.default is Parameter.empty]
    return len(needed) > (2 if mode == "wrap" else 1)


def _looks_at_model_only(check: Any) -> bool:
    return check.info.mode == "after" and len(signature(check.func).parameters) == 1
