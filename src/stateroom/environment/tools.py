"""`@tool`: a method that the model may call."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from stateroom.environment.schema import (
    arguments_model,
    field_name,
    function_schema,
    null_means_default,
    parameters_schema,
    result_schema,
)
from stateroom.errors import DefinitionError, InvalidArguments
from stateroom.session import INJECTED, SHARED, Ask, Clock, Effect, Procedure, SessionInfo, code_of, contained
from stateroom.state import State

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

RESERVED = frozenset(
    {"seed_session", "close_session", "verify", "aggregate_metrics", "reverify_mode", "reset", "step", "close"}
    | {"run", "mcp", "v1", "admin", "health", "ready", "metrics", "docs", "openapi.json", "threads", "reply"}
    | {"start_session", "instructions"}
)
"""Names of the server's routes, and of its own tool for MCP clients: reserved names for tools."""

INJECTED_TYPES: dict[str, type] = {"session": SessionInfo, "rng": Random, "clock": Clock, "ask": Ask}
"""The types of injected parameters; those of `state`, `user` and `app` are the author's own."""

ANY_STATE = "annotate it with a State"

KNOWN = frozenset({*INJECTED, "task", "episode", "message"})
"""All injected names: a first parameter with such a name is not meant as `self`."""

FUNCTIONS = frozenset({"new_id", "ask"})
"""Injected parameters that are called."""

UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})
"""Types of arguments that a tool cannot change."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Marked:
    """The options of `@tool` on a method."""

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
    """Mark a method as a tool.

    `effect` is `"read"` for a tool that only reads the state, `"write"` for one that changes the state and nothing
    else, and `"external"` for one with effects outside. `timeout` is in seconds. If a crash hides the outcome of an
    external tool, `on_unknown` decides whether the same call fails or runs the tool again.
    """
    if isinstance(function, str):
        raise DefinitionError(f"@tool takes keyword arguments; write @tool(effect={function!r})")
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
    """A tool of an environment: its schema for the model, and its function."""

    name: str
    effect: Effect
    retries_unknown: bool
    procedure: Procedure
    arguments: type[BaseModel]
    nullable: frozenset[str]
    renamed: dict[str, str]
    """Parameters by their field in `arguments`, where the names differ."""
    definition: dict[str, Any]
    """The tool as an OpenAI function."""
    parameters: dict[str, Any]
    """The JSON schema of its parameters."""
    returns: dict[str, Any] | None
    """The JSON schema of its results, if they are objects of a known type."""
    returns_text: ClassVar[bool] = False

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Validate the model's arguments, and return them by parameter, as copies. Raises `InvalidArguments`."""
        if not UNCHANGEABLE.issuperset(map(type, arguments.values())):
            arguments = to_jsonable_python(arguments)
        if self.nullable and None in arguments.values():
            arguments = {
                name: value for name, value in arguments.items() if value is not None or name not in self.nullable
            }
        try:
            try:
                bound: dict[str, Any] = self.arguments.__pydantic_validator__.validate_python(arguments).__dict__
            except BaseException:  # as `with contained:` would do, at no cost when nothing is raised
                with contained:
                    raise
        except ValidationError as error:
            bound = self._without_nulls(arguments, error)
        except Exception as error:  # from an author's own validator
            logger.warning("cannot check the arguments of %s", self.name, exc_info=error)
            message = f"{self.name}: cannot check its arguments: unexpected {type(error).__name__}"
            raise InvalidArguments(message) from error
        return {self.renamed.get(name, name): value for name, value in bound.items()} if self.renamed else bound

    def _without_nulls(self, arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
        """Validate again without the nulls that were refused: inside a parameter too, null means the default."""
        nulls = [problem["loc"] for problem in error.errors(include_url=False) if problem["input"] is None]
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


@dataclass(frozen=True)
class Hook:
    """An environment's `reply` or `instructions`: like a tool, but no model can call it."""

    name: str
    effect: Effect
    procedure: Procedure
    takes: frozenset[str] = frozenset()
    """The arguments that it takes."""
    retries_unknown: ClassVar[bool] = False
    returns_text: ClassVar[bool] = True
    definition: ClassVar[dict[str, Any]] = {}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that it takes."""
        return {name: arguments[name] for name in self.takes}


class Injectable(NamedTuple):
    """The environment's own injectable parameters."""

    state_type: type[State] | None
    resources: frozenset[str]
    first: str = "self"
    """The first parameter of the functions."""


def make_tool(where: str, name: str, method: Callable[..., Any], hints: dict[str, Any], injectable: Injectable) -> Tool:
    """The tool of a marked method; `where` names it in errors."""
    check_method(where, method, injectable.first)
    marked: Marked = method.__stateroom_tool__  # type: ignore[attr-defined]
    if not _NAME.fullmatch(name):
        why = "a tool's name must start with a letter, and have at most 64 letters, digits, _ and -; rename it"
        raise misfit(where, method, why)
    if name in RESERVED:
        raise misfit(where, method, f"the name {name!r} is reserved for the server; rename the tool")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    needs = frozenset(parameter.name for parameter in parameters) & (injectable.resources | frozenset(INJECTED))
    for parameter in parameters:
        _check_parameter(where, method, parameter, needs, hints)
        if _is_state(hints.get(parameter.name), injectable.state_type) and parameter.name not in needs:
            problem = f"`{parameter.name}: {type_name(hints[parameter.name])}` has the type of the session's state"
            raise misfit(where, method, f"{problem}, which is injected as `state`; rename it to `state`")
    for missing in () if injectable.state_type is not None else sorted({"state", "session", "ask", *SHARED} & needs):
        raise misfit(where, method, f"`{missing}` needs an environment with a state; write Environment[YourState]")
    wanted = {parameter.name: hints[parameter.name] for parameter in parameters if parameter.name not in needs}
    arguments = arguments_model(where, method, wanted)
    schema = parameters_schema(arguments)
    definition = function_schema(name, method, schema)
    if not definition["description"]:
        raise misfit(where, method, "a tool needs a docstring, which the model reads; add one")
    return Tool(
        name=name,
        effect=marked.effect,
        retries_unknown=marked.on_unknown == "retry",
        procedure=Procedure(method, needs, marked.timeout, needs & injectable.resources),
        arguments=arguments,
        nullable=null_means_default(arguments),
        renamed={field_name(name): name for name in wanted if field_name(name) != name},
        definition=definition,
        parameters=schema,
        returns=result_schema(hints.get("return", Any)),
    )


def check_method(where: str, method: Any, first: str = "self") -> None:
    """Raise `DefinitionError` unless it is a plain method that takes `self` and returns a result."""
    if not inspect.isfunction(method):
        raise misfit(where, method, f"it must be a plain method; remove {type(method).__name__}, and add self")
    given = next(iter(inspect.signature(method).parameters.values()), None)
    if given is None:
        raise misfit(where, method, f"its first parameter must be {first}; add it")
    if given.name != first and (given.name in KNOWN or given.annotation is not given.empty):
        raise misfit(where, method, f"its first parameter must be {first}, not `{given.name}`; add it")
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise misfit(where, method, "it must not yield; return a list instead")


def _remove(arguments: Any, place: tuple[int | str, ...]) -> None:
    """Delete the null at a place, if a dict contains it."""
    owner: Any = None
    key: Any = None
    for step in place:
        if isinstance(arguments, dict | list):
            try:
                owner, key, arguments = arguments, step, arguments[step]  # type: ignore[index]
            except (LookupError, TypeError):
                continue  # the name of a union's member is not in the data
    if isinstance(owner, dict) and arguments is None:
        del owner[key]


def _check_parameter(
    where: str, method: Any, parameter: inspect.Parameter, injected: frozenset[str], hints: dict[str, Any]
) -> None:
    name = parameter.name
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise misfit(where, method, f"the model cannot fill `{parameter}`; use named parameters")
    if name in injected:
        check_injected(where, method, name, hints)
    elif name not in hints:
        raise misfit(where, method, f"`{name}` needs a type, which the model sees; annotate it")


def check_injected(where: str, method: Any, name: str, hints: Mapping[str, Any]) -> None:
    """Refuse a parameter with an injected name and another annotation."""
    hint = hints.get(name, Any)
    if name not in INJECTED or _is_injected_as(name, hint):
        return
    types = {"new_id": "Callable[..., str]", **{known: type_name(kind) for known, kind in INJECTED_TYPES.items()}}
    raise clash(where, method, name, hint, f"write `{name}: {types[name]}`" if name in types else ANY_STATE)


def clash(where: str, method: Any, name: str, hint: Any, advice: str) -> DefinitionError:
    """The error for a parameter with the name of an injected one, but another type."""
    alias = f'`Annotated[{type_name(hint)}, Field(alias="{name}")]` shows it to the model as `{name}`'
    renaming = f"rename it ({alias})" if hasattr(method, "__stateroom_tool__") else "rename it"
    problem = f"`{name}: {type_name(hint)}` clashes with the injected parameter `{name}` ({INJECTED[name]})"
    return misfit(where, method, f"{problem}; {renaming}, or {advice}")


def _is_injected_as(name: str, hint: Any) -> bool:
    """Whether a parameter with this annotation takes what is injected under the name."""
    origin = get_origin(hint) or hint
    if origin is Annotated:
        return _is_injected_as(name, get_args(hint)[0])
    if origin in (Union, UnionType):
        return any(_is_injected_as(name, member) for member in get_args(hint))
    if origin is Any or isinstance(origin, TypeVar) or getattr(origin, "_is_protocol", False):
        return True
    if name in SHARED:
        return isinstance(origin, type) and issubclass(origin, State)
    if name == "state":  # whose own type is checked where it is known
        return isinstance(origin, type) and (issubclass(origin, State) or issubclass(State, origin))
    if name in FUNCTIONS and origin is Callable:
        return True
    return isinstance(origin, type) and name in INJECTED_TYPES and issubclass(INJECTED_TYPES[name], origin)


def _is_state(hint: Any, state_type: type[State] | None) -> bool:
    """Whether an annotation is the type of the state, or a State that it inherits from."""
    if state_type is None or not isinstance(hint, type):
        return False
    return issubclass(hint, State) and issubclass(state_type, hint)


def type_name(hint: Any) -> str:
    """The name of a type, as in an annotation."""
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)


def misfit(where: str, method: Any, message: str) -> DefinitionError:
    """The error for a method of the author, with its place in the source."""
    code = code_of(method)
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno} in {where}" if code else f"in {where}"
    return DefinitionError(f"{message}. {place}")


def _complaints(error: ValidationError) -> dict[str, str]:
    """The errors by the place of the argument."""
    complaints = {}
    for problem in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in problem["loc"])
        if problem["type"] == "extra_forbidden":
            complaints[place] = f"unknown parameter {place!r}"
        elif problem["type"] == "missing":
            complaints[place] = f"the parameter {place!r} is missing"
        else:
            complaints[place] = f"{place}: {problem['msg']}"
    return complaints
