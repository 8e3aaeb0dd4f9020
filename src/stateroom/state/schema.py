"""The schema of a state class: its version, and what stands at each of its places.

Two schemas are the same if data of one can be read as the other, field by field: names, types and choices count.
Defaults, descriptions and checks do not: what is stored has a value for every field, and is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from stateroom.errors import DefinitionError, SchemaChanged
from stateroom.state.codec import decode, encode
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
    """The version and the fields of a state class."""

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


def only_adds(old: dict[str, str], new: dict[str, str]) -> bool:
    """Whether a schema has all places of an older one as they were, and more."""
    return all(new.get(place) == kind for place, kind in old.items())


def fill_defaults(shape: Shape, data: Any, path: str = "") -> None:
    """Add the fields that plain data lacks, with their defaults; `SchemaChanged` if one has none."""
    if isinstance(shape, ModelShape) and isinstance(data, dict):
        for name, part in shape.fields.items():
            place = f"{path}.{name}" if path else name
            if name in data:
                fill_defaults(part, data[name], place)
                continue
            field = shape.model.model_fields[name]
            if field.is_required():
                raise SchemaChanged(f"{place} is new, and has no default")
            data[name] = decode(encode(field.get_default(call_default_factory=True, validated_data=data)))
    elif isinstance(shape, ListShape) and isinstance(data, list):
        for item in data:
            fill_defaults(shape.item, item, f"{path}[]")
    elif isinstance(shape, DictShape) and isinstance(data, dict):
        for value in data.values():
            fill_defaults(shape.value, value, f"{path}{{}}")
    elif isinstance(shape, TupleShape) and isinstance(data, list | tuple):
        for index, item in enumerate(data):
            fill_defaults(shape.items[0 if shape.repeated else index], item, f"{path}[]")
    elif isinstance(shape, UnionShape):
        branches = [member for member in shape.members if not member.leaf]
        if len(branches) == 1:  # else, while a field is missing, it could be any of them
            fill_defaults(branches[0], data, path)


class _Reader:
    """Goes through a shape; a model that stands at several places is described once, at the first of them."""

    def __init__(self) -> None:
        self.first_path: dict[ModelShape, str] = {}

    def place(self, shape: Shape, path: str) -> Iterator[tuple[str, str]]:
        """A place and all below it, each with the type there."""
        yield path, _kind(shape)
        yield from self.below(shape, path)

    def below(self, shape: Shape, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(shape, ModelShape):
            known = self.first_path.setdefault(shape, path)
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
    """The type of a place, less that of the places below it."""
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


Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""From the plain data of one version to that of the next."""


class Versioned:
    """Versions and migrations of a class whose data is stored: `class Cart(State, version=2)`."""

    __migrations__: ClassVar[Migrations]

    @classmethod
    def accept_defaults(cls) -> None:
        """Fill in the defaults of new fields when reading older data. Only for development.

        Give a released class a new version and a migration instead.
        """
        cls.__migrations__.accepts_defaults = True

    @classmethod
    def migration(cls, version: int) -> Callable[[Migration], Migration]:
        """Mark a function that migrates data from a version to the next: `@Cart.migration(1)`.

        It takes a dict of the fields, in which models are dicts and enums their values, and returns such a dict; it may
        change its argument.
        """

        def mark(function: Migration) -> Migration:
            cls.__migrations__.add(version, function)
            return function

        return mark


class Migrations:
    """The migrations of a class."""

    def __init__(self, name: str, version: int | None, base: Migrations | None = None) -> None:
        """Without a version of its own, a class has that of its base; the way from there is known there too."""
        newest: int = (base.version if base else 1) if version is None else version
        if not isinstance(newest, int) or newest < 1:
            raise DefinitionError(f"{name}: a version must be a whole number of at least 1, not {version!r}")
        self.name = name
        self.version: int = newest
        """The version of the current class."""
        self.accepts_defaults = False
        """Whether a new field with a default needs no new version."""
        self._base = base
        self._steps: dict[int, Migration] = {}

    def add(self, version: int, migration: Migration) -> None:
        """Add the migration from a version to the next."""
        if not 1 <= version < self.version:
            raise DefinitionError(
                f"{self.name} is at version {self.version}: add migrations from versions 1 to {self.version - 1}, "
                f"not from {version}"
                if self.version > 1
                else f"{self.name} is at version 1; to add a migration, write class {self.name}(…, version=2)"
            )
        if version in self._steps:
            raise DefinitionError(f"{self.name} has two migrations from version {version}")
        self._steps[version] = migration

    def upgrade(self, data: Any, version: int) -> Any:
        """Data of a version as data of the newest; each step of the way is checked. `data` may be changed."""
        if version > self.version:
            raise SchemaChanged(
                f"it has version {version} of {self.name}, but this code only knows versions up to {self.version}; "
                "read it with newer code"
            )
        for step in range(version, self.version):
            data = self._step(data, step)
        return data

    def _find(self, version: int) -> Migration | None:
        return self._steps.get(version) or (self._base._find(version) if self._base else None)

    def _step(self, data: Any, version: int) -> Any:
        migration = self._find(version)
        way = f"from version {version} of {self.name} to {version + 1}"
        if migration is None:
            raise SchemaChanged(f"the migration {way} is missing; add it with @{self.name}.migration({version})")
        try:
            data = migration(data)
            encode(data)
        except Exception as error:
            raise SchemaChanged(f"the migration {way} failed: {type(error).__name__}: {error}") from error
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise SchemaChanged(f"the migration {way} must return a dict of fields, not {type(data).__name__}")
        return data
