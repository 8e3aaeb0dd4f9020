"""Function schemas: a tool's schema for the model, from its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from stateroom.errors import DefinitionError

_DROPPED = {"default", "examples", "minLength", "maxLength", "uniqueItems"}
"""Keywords that strict mode does not have; the arguments are validated nevertheless."""

_TYPING = {"type", "anyOf", "$ref", "enum", "const"}
"""Keywords that say what a value may be."""

_VALUES = {"enum", "const", "default", "examples"}
"""Keywords with values, and not with schemas."""


class _NotStrict(Exception):
    """Strict mode cannot describe the parameters."""


def arguments_model(where: str, function: Callable[..., Any], hints: dict[str, Any]) -> type[BaseModel]:
    """A pydantic model of the parameters that the model fills in: those in `hints`."""
    descriptions = _descriptions(function)
    fields: dict[str, Any] = {}
    shown_names: list[Any] = []
    try:
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in hints:
                continue
            hint, default = hints[name], parameter.default
            default = ... if default is inspect.Parameter.empty else default
            own = FieldInfo.from_annotated_attribute(hint, default)  # the author's own Field
            if own.description is None and name in descriptions:
                hint = Annotated[hint, Field(description=descriptions[name])]
            if field_name(name) != name and own.validation_alias is None:
                hint = Annotated[hint, Field(alias=name)]
            fields[field_name(name)] = (hint, default)
            shown = own.validation_alias or name
            if shown in shown_names:
                raise ValueError(f"two parameters are called {shown!r}")
            shown_names.append(shown)
        arguments = create_model(where, __config__=ConfigDict(extra="forbid"), **fields)
        arguments.model_json_schema()
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        message = str(error).partition("\n")[0]
        raise DefinitionError(f"cannot make a schema of its parameters: {message}. In {where}") from error
    return arguments


def field_name(parameter: str) -> str:
    """The field of a parameter: the same name, unless pydantic models use it themselves."""
    taken = parameter.startswith(("_", "model_")) or hasattr(BaseModel, parameter)
    return f"parameter_{parameter}" if taken else parameter


def parameters_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a tool's parameters; those with a default are optional."""
    schema = _inlined(arguments.model_json_schema())
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False, **schema}


def result_schema(hint: Any) -> dict[str, Any] | None:
    """The JSON schema of a tool's results, from its return type; None unless that is an object of a known type."""
    try:
        schema = _inlined(TypeAdapter(hint).json_schema(mode="serialization"))
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None
    says = "properties" in schema or isinstance(schema.get("additionalProperties"), dict)
    return schema if schema.get("type") == "object" and says else None


def function_schema(name: str, function: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """The tool as an OpenAI function; strict if its parameters allow it. Strict mode requires every parameter."""
    try:
        parameters, strict = _strict(parameters, parameters.get("$defs", {})), True
    except _NotStrict:
        strict = False
    return {
        "type": "function",
        "name": name,
        "description": _description(function),
        "parameters": parameters,
        "strict": strict,
    }


def null_means_default(arguments: type[BaseModel]) -> frozenset[str]:
    """Parameters with a default that do not take None: in strict mode, a model sends null for 'unset'."""
    properties = arguments.model_json_schema().get("properties", {})
    names = ((str(field.validation_alias or name), field) for name, field in arguments.model_fields.items())
    return frozenset(
        name for name, field in names if not field.is_required() and not _allows_null(properties.get(name, {}))
    )


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without titles and references, which not every client follows; a type within itself keeps its own."""
    definitions = schema.get("$defs", {})
    recursive = {name for name in definitions if name in _within(definitions[name], definitions, set())}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(part) for part in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node and (name := _target(node)) not in recursive:
            node = {**definitions[name], **{key: value for key, value in node.items() if key != "$ref"}}
            return walk(node)
        made: dict[str, Any] = {}
        for key, value in node.items():
            if key == "properties":
                made[key] = {name: walk(part) for name, part in value.items()}
            elif key in _VALUES:
                made[key] = value
            elif key not in ("title", "discriminator", "$defs"):
                made["anyOf" if key == "oneOf" else key] = walk(value)
        return made

    kept = {name: walk(definitions[name]) for name in definitions if name in recursive}
    return {**walk(schema), **({"$defs": kept} if kept else {})}


def _within(node: Any, definitions: dict[str, Any], found: set[str]) -> set[str]:
    """The names of all definitions that a schema refers to, directly or not."""
    if isinstance(node, dict) and "$ref" in node and (name := _target(node)) not in found:
        found.add(name)
        _within(definitions[name], definitions, found)
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _within(part, definitions, found)
    return found


def _target(node: dict[str, Any]) -> str:
    """The name of the definition that a node refers to."""
    return str(node["$ref"]).rpartition("/")[2]


def _strict(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_strict(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    if "prefixItems" in node or ("additionalProperties" in node and node["additionalProperties"] is not False):
        raise _NotStrict
    if node.get("type") == "object" and "properties" not in node and node.get("additionalProperties") is not False:
        raise _NotStrict
    if not node.keys() & _TYPING:  # any value, which strict mode cannot express
        raise _NotStrict
    if "$ref" in node and len(node.keys() - _DROPPED) > 1:  # strict mode takes a reference only by itself
        node = {**definitions[_target(node)], **{key: value for key, value in node.items() if key != "$ref"}}
    made: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            required = node.get("required", ())
            made[key] = {
                name: _strict(part if name in required else _or_null(part), definitions) for name, part in value.items()
            }
        elif key == "$defs":
            made[key] = {name: _strict(part, definitions) for name, part in value.items()}
        elif key in ("enum", "const"):
            made[key] = value
        elif key not in _DROPPED:
            made[key] = _strict(value, definitions)
    if "properties" in made:
        made["required"] = list(made["properties"])
        made["additionalProperties"] = False
    return made


def _allows_null(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "null" or any(_allows_null(choice) for choice in schema.get("anyOf", ()))


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if _allows_null(schema):
        return schema
    described = {key: schema[key] for key in ("description",) if key in schema}
    return {
        "anyOf": [{key: value for key, value in schema.items() if key != "description"}, {"type": "null"}],
        **described,
    }


def _description(function: Callable[..., Any]) -> str:
    from docstring_parser import parse  # noqa: PLC0415 - only needed when an environment is defined

    parsed = parse(function.__doc__ or "")
    return "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    from docstring_parser import parse  # noqa: PLC0415

    return {param.arg_name: param.description for param in parse(function.__doc__ or "").params if param.description}
