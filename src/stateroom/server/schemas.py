"""JSON schemas: of authors' types and of requests by pydantic, and of replies by msgspec."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import reduce
from inspect import cleandoc, getsource
from itertools import pairwise
from operator import or_
from textwrap import dedent
from types import UnionType
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from pydantic import TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from stateroom.environment import Environment, Tool
from stateroom.server.api import P, Parameters

Schema = dict[str, Any]

PLACE = "#/components/schemas/"
"""The place of definitions in an OpenAPI document."""

OWN = "stateroom."
"""How the names of definitions of replies begin, so that no author's type has the same."""


class UntitledFields(GenerateJsonSchema):
    """Schemas without titles of fields, which would repeat their names.

    Warnings about an author's defaults were shown when the environment was defined.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Schemas:
    """The schemas of many types, and the definitions that they share.

    A tuple of types is a value that fits all of them, and a list of types a value that fits one, as a union is. A type
    without a schema allows anything.
    """

    def __init__(self, requests: Iterable[Any], replies: Iterable[Any]) -> None:
        replies = _leaves(replies)
        wanted: list[tuple[JsonSchemaMode, Any]]
        wanted = [("validation", kind) for kind in _leaves(requests)]
        wanted += [("serialization", kind) for kind in replies if not _is_struct(kind)]
        adapters = {(id(kind), mode): adapter for mode, kind in wanted if (adapter := _adapter(kind, mode))}
        made, definitions = TypeAdapter.json_schemas(
            [(key, key[1], adapter) for key, adapter in adapters.items()],
            ref_template=PLACE + "{model}",
            schema_generator=UntitledFields,
        )
        self._known: dict[tuple[int, str], Schema] = {key: schema for (key, _), schema in made.items()}
        self._kinds = wanted  # whose ids are not used again
        self.definitions: Schema = definitions.get("$defs", {})
        structs = [*{kind for kind in replies if _is_struct(kind)}]
        schemas, definitions = _struct_schemas(structs)
        self._known |= {(id(kind), "serialization"): schema for kind, schema in zip(structs, schemas, strict=True)}
        self.definitions |= definitions

    def of(self, kind: Any, mode: JsonSchemaMode) -> Schema:
        """The schema of one of the types."""
        parts = parts_of(kind)
        if parts == [kind]:
            return self._known.get((id(kind), mode), {})
        return {"allOf" if isinstance(kind, tuple) else "anyOf": [self.of(part, mode) for part in parts]}


def parts_of(kind: Any) -> list[Any]:
    """The types of a tuple, a list or a union."""
    return [*kind] if isinstance(kind, tuple | list) else [*get_args(kind)] if _is_union(kind) else [kind]


def _leaves(kinds: Iterable[Any]) -> list[Any]:
    return [leaf for kind in kinds for leaf in ([kind] if parts_of(kind) == [kind] else _leaves(parts_of(kind)))]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_struct(kind: Any) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _adapter(kind: Any, mode: JsonSchemaMode = "validation") -> TypeAdapter[Any] | None:
    """The adapter that makes the schema of a type; None if it has no schema."""
    try:
        adapter = TypeAdapter[Any](kind)
        adapter.json_schema(mode=mode, schema_generator=UntitledFields)
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None
    return adapter


def with_tasks(kind: type[Parameters], field: str, environments: Iterable[Environment[Any, Any]]) -> Any:
    """Parameters that name an environment and have a task row in a field: for each environment with its own tasks.

    The environment that is named by default needs no task.
    """
    default = kind.model_fields["environment"].default
    forms = []
    for environment in environments:
        name, task = environment.name, task_of(environment)
        own: dict[str, Any] = {"environment": (Literal[name], ...), field: (task, ...)}
        if name == default:
            own = {"environment": (Literal[name], name), field: (task, {})}
        forms.append(create_model(f"{kind.__name__}_{name}", __base__=kind, **own))
    return reduce(or_, forms) if forms else kind


def with_environments(kind: type[P], names: Iterable[str]) -> type[P]:
    """Parameters that name one of these environments."""
    default = kind.model_fields["environment"].default
    own: dict[str, Any] = {"environment": (Literal[tuple(names)], default)}
    return create_model(kind.__name__, __base__=kind, **own)


def task_of(environment: Environment[Any, Any]) -> Any:
    """The type of an environment's tasks; any object, if that has no schema."""
    return environment.task_type if _adapter(environment.task_type) else dict[str, Any]


def return_type(tool: Tool) -> Any:
    """The declared return type of a tool; anything, if it cannot be read."""
    try:
        return get_type_hints(tool.procedure.function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


class FormSchema(UntitledFields):
    """Schemas of what a person fills in: bytes are base64, as in edits."""

    def bytes_schema(self, schema: Any) -> Schema:
        return {"type": "string", "contentEncoding": "base64"}


def form_schema(kind: Any) -> Schema:
    """The schema of a type that a person fills in, with its definitions; a type without a schema allows anything."""
    adapter = _adapter(kind)
    return {} if adapter is None else adapter.json_schema(schema_generator=FormSchema)


# Replies.


def _struct_schemas(kinds: list[type]) -> tuple[list[Schema], Schema]:
    """The schemas of structs and their definitions, with the docstrings of fields, which msgspec leaves out."""
    schemas, definitions = msgspec.json.schema_components(kinds, ref_template=f"{PLACE}{OWN}{{name}}")
    for name, kind in reduce(_add_classes, kinds, dict[str, type]()).items():
        definition = definitions[name]
        for field, text in _field_docstrings(kind).items():
            definition["properties"][field]["description"] = text
        if not (_is_struct(kind) and kind.__struct_config__.omit_defaults):  # a reply has all of its fields
            definition["required"] = [*definition["properties"]]
    return [*schemas], {f"{OWN}{name}": definition for name, definition in definitions.items()}


def _add_classes(known: dict[str, type], kind: Any) -> dict[str, type]:
    """Add the classes with fields that occur in a type, by name."""
    for part in get_args(kind):
        _add_classes(known, part)
    has_fields = _is_struct(kind) or is_typeddict(kind) or (isinstance(kind, type) and is_dataclass(kind))
    if has_fields and kind.__name__ not in known:
        known[kind.__name__] = kind
        for hint in get_type_hints(kind).values():
            _add_classes(known, hint)
    return known


def _field_docstrings(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class, by the names that the fields have in JSON."""
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)) if _is_struct(kind) else {}
    docstrings = {}
    for base in reversed(kind.__mro__):
        with suppress(OSError, TypeError):  # it has no source
            [node] = ast.parse(dedent(getsource(base))).body
            for field, text in pairwise(getattr(node, "body", ())):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        docstrings[names.get(name, name)] = cleandoc(said)
    return docstrings
