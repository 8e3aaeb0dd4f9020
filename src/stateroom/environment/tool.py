"""`@tool`: a method that the model may call."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from stateroom.environment.schema import arguments_model, field_name, function_schema, nullable_defaults
from stateroom.errors import DefinitionError, InvalidArguments
from stateroom.session.containment import contained
from stateroom.session.parameters import INJECTED, SHARED
from stateroom.session.program import Effect, Procedure

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

RESERVED = frozenset(
    {"seed_session", "close_session", "verify", "aggregate_metrics", "reverify_mode", "reset", "step", "close"}
    | {"run", "mcp", "v1", "admin", "health", "ready", "metrics", "docs", "openapi.json", "threads", "reply"}
)
"""Names that a server answers itself: no tool can have one, so no model can call one."""

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of arguments that a tool cannot change."""

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
    if timeout is not None and not timeout > 0:
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
    renamed: dict[str, str]
    """Parameters by the field that stands for them, where that has another name."""
    definition: dict[str, Any]
    """The OpenAI function."""

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The validated arguments, by parameter; what the tool does to them does not change what was given."""
        if not PLAIN.issuperset(map(type, arguments.values())):
            arguments = to_jsonable_python(arguments)
        if self.nullable and None in arguments.values():
            arguments = {
                name: value for name, value in arguments.items() if value is not None or name not in self.nullable
            }
        try:
            try:
                bound: dict[str, Any] = self.arguments.__pydantic_validator__.validate_python(arguments).__dict__
            except BaseException:
                with contained:
                    raise
        except ValidationError as error:
            bound = self._without_nulls(arguments, error)
        except Exception as error:  # what a validator of the author's own may raise
            logger.warning("the arguments of %s cannot be checked", self.name, exc_info=error)
            message = f"{self.name}: its arguments cannot be checked: unexpected {type(error).__name__}"
            raise InvalidArguments(message) from error
        return {self.renamed.get(name, name): value for name, value in bound.items()} if self.renamed else bound

    def _without_nulls(self, arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
        """Within a parameter too, null stands for a default: without the nulls that were refused, all may be well."""
        nulls = [found["loc"] for found in error.errors(include_url=False) if found["input"] is None]
        if nulls:
            pruned = deepcopy(dict(arguments))
            for place in nulls:
                _remove(pruned, place)
            with suppress(ValidationError), contained:
                bound: dict[str, Any] = self.arguments.__pydantic_validator__.validate_python(pruned).__dict__
                return bound
        fields = _complaints(error)
        raise InvalidArguments(f"{self.name}: {'; '.join(fields.values())}", fields) from None

    def bound_to(self, environment: Any) -> Tool:
        """The tool of one instance of the environment."""
        function = self.procedure.function.__get__(environment)
        return Tool(**{**self.__dict__, "procedure": replace(self.procedure, function=function)})


class Kept(NamedTuple):
    """What an environment keeps for its sessions."""

    has_state: bool
    resources: frozenset[str]


def procedure_of(
    function: Callable[..., Any],
    needs: frozenset[str],
    timeout: float | None = None,
    resources: frozenset[str] = frozenset(),
) -> Procedure:
    """A function with what it needs."""
    return Procedure(function, needs, inspect.iscoroutinefunction(function), timeout, resources)


def make_tool(where: str, name: str, method: Callable[..., Any], hints: dict[str, Any], kept: Kept) -> Tool:
    """The tool that a marked method stands for; `where` names it in errors."""
    check_method(where, method)
    marked: Marked = method.__stateroom_tool__  # type: ignore[attr-defined]
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{where}: a tool's name starts with a letter and has at most 64 letters, digits, _ and -"
        )
    if name in RESERVED:
        raise DefinitionError(f"{where}: the name {name!r} is reserved; give the tool another")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    needs = frozenset(parameter.name for parameter in parameters) & (kept.resources | frozenset(INJECTED))
    for parameter in parameters:
        _check_parameter(where, parameter, needs, hints)
    for missing in () if kept.has_state else sorted({"state", "session", "ask", *SHARED} & needs):
        raise DefinitionError(
            f"{where} asks for `{missing}`, but the environment has none; write Environment[YourState]"
        )
    wanted = {parameter.name: hints[parameter.name] for parameter in parameters if parameter.name not in needs}
    arguments = arguments_model(where, method, wanted)
    definition = function_schema(name, method, arguments)
    if not definition["description"]:
        raise DefinitionError(f"{where}: a tool needs a docstring; the model reads it")
    return Tool(
        name=name,
        effect=marked.effect,
        retries_unknown=marked.on_unknown == "retry",
        procedure=procedure_of(method, needs, marked.timeout, needs & kept.resources),
        arguments=arguments,
        nullable=nullable_defaults(arguments),
        renamed={field_name(name): name for name in wanted if field_name(name) != name},
        definition=definition,
    )


def check_method(where: str, method: Any) -> None:
    """Refuse what cannot be run as a method that takes `self` and returns a result."""
    if not inspect.isfunction(method):
        raise DefinitionError(f"{where} must be a plain method: take {type(method).__name__} away and let it have self")
    if not inspect.signature(method).parameters:
        raise DefinitionError(f"{where} must have self as its first parameter")
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise DefinitionError(f"{where} yields: return a list instead")


def _remove(arguments: Any, place: tuple[int | str, ...]) -> None:
    """Delete the null at a place, if it stands in a dict there."""
    owner: Any = None
    key: Any = None
    for step in place:
        if isinstance(arguments, dict | list):
            try:
                owner, key, arguments = arguments, step, arguments[step]  # type: ignore[index]
            except (LookupError, TypeError):
                continue  # the name of a union's member, which is no step in the data
    if isinstance(owner, dict) and arguments is None:
        del owner[key]


def _check_parameter(where: str, parameter: inspect.Parameter, injected: frozenset[str], hints: dict[str, Any]) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise DefinitionError(f"{where}: a tool's parameters are named, so {parameter} cannot be one of them")
    if parameter.name not in injected and parameter.name not in hints:
        raise DefinitionError(f"{where}: the parameter {parameter.name!r} needs a type; the model is told it")


def _complaints(error: ValidationError) -> dict[str, str]:
    """What is wrong, by the place where it is."""
    complaints = {}
    for found in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in found["loc"])
        if found["type"] == "extra_forbidden":
            complaints[place] = f"there is no parameter {place!r}"
        elif found["type"] == "missing":
            complaints[place] = f"the parameter {place!r} is missing"
        else:
            complaints[place] = f"{place}: {found['msg']}"
    return complaints
