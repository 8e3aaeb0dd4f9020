"""The check `schema`: a model can be told what the tools are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stateroom.environment import Environment, Tool
from stateroom.errors import NotFound
from stateroom.model import open_model
from stateroom.rollout.checking.finding import Fault, Finding, finding, listed

NAME = "schema"


def check_schema(environment: Environment[Any, Any]) -> Finding:
    """Every tool and parameter is described, and as strictly as a model can be held to."""
    tools = environment.tools.values()
    faults = [fault for tool in tools for fault in _faults(tool)]
    if not tools:
        faults.append(Fault("there are no tools: mark methods with @tool"))
    faults += _no_policies(type(environment))
    if not type(environment).__doc__:
        faults.append(Fault(f"{type(environment).__name__} has no docstring: lists and servers show it", False))
    state = type(environment).state_type
    kept = f"the state is {state.__name__}" if state is not None else "stateless"
    return finding(NAME, faults, f"{listed([tool.name for tool in tools])}: described and strict; {kept}")


def _no_policies(environment: type[Environment[Any, Any]]) -> Iterator[Fault]:
    for name in environment.policies:
        try:
            open_model(name, environment.policies)
        except NotFound as error:
            yield Fault(f"policies: {error}")


def _faults(tool: Tool) -> Iterator[Fault]:
    parameters = tool.definition["parameters"]
    for name, schema in parameters["properties"].items():
        if not schema.get("description"):
            yield Fault(f"{tool.name}: `{name}` has no description; add it to the docstring, under Args:", False)
    if not tool.definition["strict"]:
        definitions = parameters.get("$defs", {})
        loose = {name: _looseness(part, definitions) for name, part in parameters["properties"].items()}
        whys = [f"`{name}` is {why}" for name, why in loose.items() if why]
        yield Fault(
            f"{tool.name} is not strict, so a model may get its arguments wrong: "
            f"{listed(whys) or 'of its parameters'}; a model with fields would do",
            False,
        )


def _looseness(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> str | None:
    """What in a schema cannot be held to strictly."""
    if not isinstance(schema, dict) or depth > 20:
        return None
    if "$ref" in schema:
        return _looseness(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)
    if "prefixItems" in schema:
        return "a tuple"
    if schema.get("type") == "object" and ("properties" not in schema or schema.get("additionalProperties")):
        return "a dict with any keys"
    if not schema.keys() & {"type", "anyOf", "oneOf", "enum", "const"}:
        return "of any type"
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("properties", {}).values()]
    parts += [schema["items"]] if "items" in schema else []
    return next((why for part in parts if (why := _looseness(part, definitions, depth + 1))), None)
