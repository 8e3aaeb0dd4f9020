"""`StateTools`: plain functions as tools of a model that act on a state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from pydantic_core import to_jsonable_python

from stateroom.environment import Injectable, Tool, make_tool, tool
from stateroom.errors import DefinitionError, InvalidArguments, ToolError
from stateroom.model import Item
from stateroom.session import Result
from stateroom.state import State


class StateTools:
    """Functions whose first parameter is a state: `def pay(state, amount: float) -> str`, with a docstring.

    A function that raises `ToolError` tells the model why; it must not have changed the state.
    """

    def __init__(self, what: str, functions: Iterable[Callable[..., Any]]) -> None:
        """`what` names such a tool in errors."""
        self._tools = {each.name: each for each in (_tool_of(what, function) for function in functions)}

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def definitions(self) -> list[Item]:
        """The tools as OpenAI functions."""
        return [each.definition for each in self._tools.values()]

    def on(self, state: Any) -> ToolsOnState:
        """The tools, on a state."""
        return ToolsOnState(self._tools, state)


class ToolsOnState:
    """Runs calls of tools on one state."""

    def __init__(self, tools: Mapping[str, Tool], state: Any) -> None:
        self._tools = tools
        self._state = state

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        found = self._tools.get(name)
        if found is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return Result(False, None, f"there is no tool named {name!r}; there are: {known}", "unknown_tool")
        try:
            output = found.procedure.function(self._state, **found.bind(dict(arguments)))
            return Result(True, to_jsonable_python(await output if inspect.isawaitable(output) else output))
        except InvalidArguments as error:
            return Result(False, None, str(error), "invalid_arguments", error.fields)
        except ToolError as error:
            return Result(False, None, str(error) or f"{name} failed", "tool_error")


def _tool_of(what: str, function: Callable[..., Any]) -> Tool:
    """The tool of an author's function."""
    name = getattr(function, "__name__", repr(function))
    where = f"{what} {name!r}"
    if not inspect.isfunction(function) or [*inspect.signature(function).parameters][:1] != ["state"]:
        raise DefinitionError(f"{where} must be a function whose first parameter is the state: def {name}(state, …)")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"{where}: cannot read its annotations: {error}") from None
    made = make_tool(where, name, tool(function), hints, Injectable(State, frozenset(), first="state"))
    if made.procedure.needs:
        asked = ", ".join(sorted(made.procedure.needs))
        raise DefinitionError(f"{where} asks for {asked}; only `state` and the model's arguments are available")
    return made
