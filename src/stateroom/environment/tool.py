"""`@tool`: a method that the model may call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel, ValidationError

from stateroom.environment.schema import arguments_model, function_schema, nullable_defaults
from stateroom.errors import DefinitionError, InvalidArguments
from stateroom.session.program import INJECTED, Effect, Procedure

F = TypeVar("F", bound=Callable[..., Any])

RESERVED = frozenset(
    {"seed_session", "close_session", "verify", "aggregate_metrics", "reverify_mode", "reset", "step", "close"}
    | {"run", "mcp", "v1", "admin", "health", "ready", "metrics", "docs", "openapi.json", "threads"}
)
"""Names that a server answers itself: no tool can have one, so no model can call one."""

RESERVED_PARAMETERS = frozenset({"user"})
"""Names kept for things that a session will inject."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Marked:
    """What `@tool` was told about a method."""

    effect: Effect
    timeout: float | None
    on_unknown: Literal["fail", "retry"]


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, effect: Effect = "write", timeout: float | None = None, on_unknown: Literal["fail", "retry"] = "fail"
) -> Callable[[F], F]: ...
def tool(
    function: Any = None,
    /,
    *,
    effect: Effect = "write",
    timeout: float | None = None,
    on_unknown: Literal["fail", "retry"] = "fail",
) -> Any:
    """Make a method a tool.

    `effect` says what it does: `"read"` only looks at the state, `"write"` changes the state and nothing else, and
    `"external"` reaches outside. `timeout` is how many seconds it may take. For an external tool that was started and
    whose outcome a crash has hidden, `on_unknown` says whether the same call may run it again.
    """
    if effect not in ("read", "write", "external"):
        raise DefinitionError(f"effect must be 'read', 'write' or 'external', not {effect!r}")
    if timeout is not None and timeout <= 0:
        raise DefinitionError(f"timeout must be above 0 seconds, not {timeout!r}")
    if on_unknown not in ("fail", "retry"):
        raise DefinitionError(f"on_unknown must be 'fail' or 'retry', not {on_unknown!r}")

    def mark(method: Any) -> Any:
        method.__stateroom_tool__ = Marked(effect, timeout, on_unknown)
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class Tool:
    """A tool of an environment: what it is for the model, and how it is run."""

    name: str
    effect: Effect
    retries_unknown: bool
    procedure: Procedure
    arguments: type[BaseModel]
    nullable: frozenset[str]
    definition: dict[str, Any]
    """The OpenAI function."""

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The validated arguments, by parameter."""
        if self.nullable and None in arguments.values():
            arguments = {
                name: value for name, value in arguments.items() if value is not None or name not in self.nullable
            }
        try:
            return dict(self.arguments.__pydantic_validator__.validate_python(arguments).__dict__)
        except ValidationError as error:
            raise InvalidArguments(f"{self.name}: {_complaints(error)}") from None

    def bound_to(self, environment: Any) -> Tool:
        """The tool of one instance of the environment."""
        function = self.procedure.function.__get__(environment)
        return Tool(
            **{**self.__dict__, "procedure": procedure_of(function, self.procedure.needs, self.procedure.timeout)}
        )


def procedure_of(function: Callable[..., Any], needs: frozenset[str], timeout: float | None = None) -> Procedure:
    """A function with what it needs."""
    return Procedure(function, needs, inspect.iscoroutinefunction(function), timeout)


def make_tool(where: str, method: Callable[..., Any], hints: dict[str, Any], stateless: bool) -> Tool:
    """The tool that a marked method stands for; `where` names it in errors."""
    name = method.__name__
    marked: Marked = method.__stateroom_tool__  # type: ignore[attr-defined]
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{where}: a tool's name starts with a letter and has at most 64 letters, digits, _ and -"
        )
    if name in RESERVED:
        raise DefinitionError(f"{where}: the name {name!r} is reserved; give the tool another")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    for parameter in parameters:
        _check_parameter(where, parameter, hints)
    needs = frozenset(parameter.name for parameter in parameters) & frozenset(INJECTED)
    if "state" in needs and stateless:
        raise DefinitionError(f"{where} asks for `state`, but the environment has none; write Environment[YourState]")
    wanted = {parameter.name: hints[parameter.name] for parameter in parameters if parameter.name not in needs}
    arguments = arguments_model(where, method, wanted)
    definition = function_schema(name, method, arguments)
    if not definition["description"]:
        raise DefinitionError(f"{where}: a tool needs a docstring; the model reads it")
    return Tool(
        name=name,
        effect=marked.effect,
        retries_unknown=marked.on_unknown == "retry",
        procedure=procedure_of(method, needs, marked.timeout),
        arguments=arguments,
        nullable=nullable_defaults(arguments),
        definition=definition,
    )


def _check_parameter(where: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise DefinitionError(f"{where}: a tool's parameters are named, so {parameter} cannot be one of them")
    if parameter.name in RESERVED_PARAMETERS:
        raise DefinitionError(f"{where}: the parameter name {parameter.name!r} is reserved")
    if parameter.name not in INJECTED and parameter.name not in hints:
        raise DefinitionError(f"{where}: the parameter {parameter.name!r} needs a type; the model is told it")


def _complaints(error: ValidationError) -> str:
    complaints = []
    for found in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in found["loc"])
        if found["type"] == "extra_forbidden":
            complaints.append(f"there is no parameter {place!r}")
        elif found["type"] == "missing":
            complaints.append(f"the parameter {place!r} is missing")
        else:
            complaints.append(f"{place}: {found['msg']}")
    return "; ".join(complaints)
