"""What may stand at each place of a state.

A `Shape` is compiled from an annotation, once. It gives the shape of each part, and turns a value that a tool left
there into one that is valid and shared with nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from inspect import signature
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError, create_model, field_validator

from stateroom.errors import InvalidState, Path
from stateroom.state.values import LEAVES, detach, fill, invalid, is_plain, plain


class Shape:
    """One place of a state: its annotation, and how a value for it is checked."""

    leaf = True
    """True when nothing that stands here can be changed in place."""

    fixed = False
    """True when a model stands here of which the same can be said: it is frozen, and holds leaves only."""

    guarded = False
    """True when a container is checked as a whole (a length, a validator), so that a change inside is checked too."""

    ordered = True
    """True when what stands here may know `<`, so that C code (`heapq`) may move it unseen."""

    heaped = False
    """True when it can change and is still likely to be on a heap: a model that defines `<`, a tuple."""

    nests = False
    """True when a model may stand here, or in what does."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.annotation)

    def admit(self, value: Any, path: Path) -> Any:
        """A valid copy of `value` that no tool holds a handle to."""
        admitted = self.validate(value if type(value) in LEAVES else detach(value, path), path)
        self.recognise(admitted, path)
        return admitted

    def validate(self, value: Any, path: Path) -> Any:
        """The valid form of a value that holds no drafts; models in it are taken as they are."""
        try:
            return self.adapter.validator.validate_python(value, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, value) from None

    def recognise(self, value: Any, path: Path) -> None:
        """Refuse a valid value that would be read back from bytes as another type."""

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
        self.nests = item.nests

    def part(self, key: Any) -> Shape:
        return self.item

    def recognise(self, value: Any, path: Path) -> None:
        if not self.item.leaf:
            for index, part in enumerate(value):
                self.item.recognise(part, (*path, index))


class DictShape(Shape):
    leaf = False
    ordered = False

    def __init__(self, annotation: Any, key: Shape, value: Shape) -> None:
        super().__init__(annotation)
        self.nests = value.nests
        self.key = key
        self.value = value

    def part(self, key: Any) -> Shape:
        return self.value

    def recognise(self, value: Any, path: Path) -> None:
        if not self.value.leaf:
            for key, part in value.items():
                self.value.recognise(part, (*path, key))


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
        self.nests = any(item.nests for item in items)
        self.heaped = not self.leaf

    def part(self, key: Any) -> Shape:
        return self.items[0 if self.repeated else key]

    def recognise(self, value: Any, path: Path) -> None:
        if not self.leaf:
            for index, part in enumerate(value):
                self.part(index).recognise(part, (*path, index))


class UnionShape(Shape):
    def __init__(self, annotation: Any, members: tuple[Shape, ...]) -> None:
        super().__init__(annotation)
        flat = [inner for shape in members for inner in (shape.members if type(shape) is UnionShape else [shape])]
        self.members: tuple[Shape, ...] = tuple(dict.fromkeys(flat))
        self.leaf = all(member.leaf for member in self.members)
        self.nests = any(member.nests for member in self.members)
        self.guarded = any(shape.guarded for shape in members if type(shape) is UnionShape)
        self.ordered = any(member.ordered for member in self.members)
        self.heaped = any(member.heaped for member in self.members)
        self.ambiguous = sum(isinstance(member, ModelShape) for member in self.members) > 1
        self._by_kind: dict[type, Shape] = {}

    def member(self, kind: type) -> Shape:
        known = self._by_kind.get(kind)
        if known is None:
            known = self._by_kind[kind] = self._member(kind)
        return known

    def _member(self, kind: type) -> Shape:
        found = [shape for shape in self.members if _origin(shape) is kind]
        if kind in (list, dict):
            found += [shape for shape in self.members if isinstance(shape, JsonShape)]
        if not found:
            return self
        return found[0] if len(found) == 1 else self._mixed(kind, found)

    def _mixed(self, kind: type, found: list[Any]) -> Shape:
        """One shape for `list[A] | list[B]`: any part of either may change, and the whole is checked again."""
        mixed: Shape
        if kind is list:
            mixed = ListShape(self.annotation, _either([shape.part(0) for shape in found]))
        elif kind is dict:
            keys, values = [shape.key for shape in found], [shape.part(None) for shape in found]
            mixed = DictShape(self.annotation, _either(keys), _either(values))
        elif kind is set:
            mixed = SetShape(self.annotation, _either([shape.item for shape in found]))
        elif kind is tuple:
            mixed = TupleShape(self.annotation, (_either([item for shape in found for item in shape.items]),), True)
        else:
            return self
        mixed.guarded = True
        return mixed

    def recognise(self, value: Any, path: Path) -> None:
        member = self.member(type(value))
        if member is not self:
            member.recognise(value, path)
        elif isinstance(value, BaseModel):
            raise InvalidState(path, f"a {type(value).__name__} would be read back as another type")
        if self.ambiguous and isinstance(value, BaseModel):
            again = self.validate(plain(value), path)
            if type(again) is not type(value):
                raise InvalidState(
                    path,
                    f"the fields of {type(value).__name__} also fit {type(again).__name__}, so it would be read back "
                    "as that; give the union a discriminator",
                )


def _either(shapes: list[Shape]) -> Shape:
    if all(shape is shapes[0] for shape in shapes):
        return shapes[0]
    return UnionShape(Union[tuple(shape.annotation for shape in shapes)], tuple(shapes))  # noqa: UP007


class JsonShape(Shape):
    """pydantic's `JsonValue`: any nesting of JSON's own types."""

    leaf = False

    @cached_property
    def key(self) -> Shape:
        return Shape(str)

    def part(self, key: Any) -> Shape:
        return self


class ModelShape(Shape):
    """A pydantic model: one shape per field, and the checks that its author wrote on fields and on the whole."""

    leaf = False
    nests = True

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(model)
        self.model = model
        self.ordered = self.heaped = model.__lt__ is not object.__lt__ or model.__gt__ is not object.__gt__  # type: ignore[operator]
        self.fields: dict[str, Shape] = {}
        self.draft_class: type | None = None
        """The class of the model's drafts, once there was one."""
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
            name: field_validator(*check.info.fields, mode=check.info.mode, check_fields=False)(
                staticmethod(partial(getattr(self.model, check.cls_var_name)))
            )
            for name, check in self.model.__pydantic_decorators__.field_validators.items()
        }
        fields: dict[str, Any] = {name: (field.annotation, field) for name, field in self.model.model_fields.items()}
        return create_model(
            self.model.__name__, __config__=self.model.model_config, __validators__=validators, **fields
        )

    def admit(self, value: Any, path: Path) -> Any:
        if not (self.fixed and type(value) is self.model and all(map(is_plain, value.__dict__.values()))):
            return super().admit(value, path)
        fields = value.__dict__
        if len(fields) > len(self.fields):  # it holds values of cached properties
            fields = {name: fields[name] for name in self.fields if name in fields}
        try:  # none of its parts needs to be copied
            return self.model.__pydantic_validator__.validate_python(fields, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path, value) from None

    def admit_field(self, name: str, value: Any, others: Mapping[str, Any], path: Path) -> Any:
        """A valid copy of `value` for the field `name` of a model whose fields are now `others`."""
        check = self.leaf_checks.get(name)
        if check is not None and (type(value) in LEAVES or is_plain(value)):
            try:
                return check(value)
            except ValidationError as error:
                raise invalid(error, path, value) from None
        admitted = self.validate_field(name, detach(value, path), others, path)
        self.fields[name].recognise(admitted, path)
        return admitted

    @cached_property
    def leaf_checks(self) -> dict[str, Callable[[Any], Any]]:
        """A quicker check for each field that holds a leaf and has no validator of the model's."""
        config = self.model.model_config
        return {
            name: TypeAdapter(field.rebuild_annotation(), config=config).validator.validate_python
            for name, field in self.model.model_fields.items()
            if self.fields[name].leaf and name not in self.guards
        }

    def validate_field(self, name: str, value: Any, others: Mapping[str, Any], path: Path) -> Any:
        """The valid form of a field's value that holds no drafts; models in it are taken as they are."""
        checker = self.field_checker
        scratch = object.__new__(checker)
        fill(scratch, dict(others), set())
        try:
            checker.__pydantic_validator__.validate_assignment(scratch, name, value, by_name=True, by_alias=False)
        except ValidationError as error:
            raise invalid(error, path[:-1], {name: value}) from None
        return scratch.__dict__[name]

    def recognise(self, value: Any, path: Path) -> None:
        if type(value) is not self.model:
            raise InvalidState(
                path, f"a {type(value).__name__} would be read back as a {self.model.__name__}; declare it in a union"
            )
        if self.fixed:
            return
        for name, part in self.fields.items():
            if not part.leaf:
                part.recognise(value.__dict__[name], (*path, name))

    @cached_property
    def settable(self) -> frozenset[str]:
        """The fields that may be assigned."""
        if self.model.model_config.get("frozen"):
            return frozenset()
        return frozenset(name for name, field in self.model.model_fields.items() if not field.frozen)

    def changed(self, model: BaseModel, changes: Mapping[str, Any]) -> BaseModel:
        """A copy of a model with other values, which are valid, in some fields."""
        fields, fields_set = model.__dict__, model.__pydantic_fields_set__
        if len(fields) > len(self.fields):  # it holds values of cached properties, of what it was
            fields = {name: fields[name] for name in self.fields}
        if not fields_set.issuperset(changes):
            fields_set = fields_set.union(changes)
        made = object.__new__(self.model)
        fill(made, {**fields, **changes}, fields_set)
        return made

    @cached_property
    def is_checked_by_fields(self) -> bool:
        """Whether it is fixed, and no check of the author's may look at more than one field."""
        return self.fixed and not (self.guarded or self.rules or self.guards)

    @cached_property
    def fixed(self) -> bool:  # type: ignore[override]
        frozen = bool(self.model.model_config.get("frozen")) and not self.model.__private_attributes__
        return frozen and all(part.leaf for part in self.fields.values())

    @cached_property
    def branches(self) -> list[str]:
        """The fields in which something can change in place."""
        return [name for name, part in self.fields.items() if not part.leaf]

    def part(self, key: Any) -> Shape:
        return self.fields[key]


def is_frozen(owner: Any, name: Any) -> bool:
    """Whether a field of a model in a state, or of a draft of it, may not be assigned."""
    shape = getattr(type(owner), "__stateroom_shape__", None)
    return isinstance(shape, ModelShape) and name not in shape.settable


def _origin(shape: Shape) -> Any:
    if isinstance(shape, ModelShape):
        return shape.model
    annotation = shape.annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) or annotation


def _looks_at_model_only(check: Any) -> bool:
    return check.info.mode == "after" and len(signature(check.func).parameters) == 1
