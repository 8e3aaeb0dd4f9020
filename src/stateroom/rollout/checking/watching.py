"""Watching an environment's tools while they run: what a session tells only the model, an author needs to know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from traceback import extract_tb
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.environment import Environment, Tool
from stateroom.errors import InvalidState, ModelFailed, ModelUnavailable, ReadOnlyState, ToolError
from stateroom.session.containment import contained
from stateroom.session.program import Procedure
from stateroom.state.describe import brief

MEANT = (ToolError, InvalidState, ModelFailed, ModelUnavailable)
"""What an author may let a tool raise: it becomes words for the model."""


class Raised(NamedTuple):
    """What a tool ended with that it should not."""

    tool: str
    call: str
    """The call, as one would write it."""
    what: str
    is_wrong: bool
    """Whether the tool can never do it, and not only did not know these arguments."""


class Watched:
    """An environment as sessions see it, whose tools are watched."""

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self._environment = environment
        self.raised: list[Raised] = []
        self.tools = {name: self._watched(tool) for name, tool in environment.tools.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def _watched(self, tool: Tool) -> Tool:
        procedure = tool.procedure
        function = self._awaited(tool.name, procedure) if procedure.is_async else self._called(tool.name, procedure)
        return replace(tool, procedure=replace(procedure, function=function))

    def _called(self, name: str, procedure: Procedure) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            try:
                with contained:
                    return self._returned(name, procedure, given, procedure.function(**given))
            except Exception as error:
                self._note(name, procedure, given, error)
                raise

        return call

    def _awaited(self, name: str, procedure: Procedure) -> Callable[..., Any]:
        async def call(**given: Any) -> Any:
            try:
                with contained:
                    return self._returned(name, procedure, given, await procedure.function(**given))
            except Exception as error:
                self._note(name, procedure, given, error)
                raise

        return call

    def _returned(self, name: str, procedure: Procedure, given: Mapping[str, Any], value: Any) -> Any:
        try:
            to_jsonable_python(value)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            what = f"returned a {type(value).__name__} that is not JSON ({error})"
            self.raised.append(Raised(name, _call(name, procedure, given), what, True))
        return value

    def _note(self, name: str, procedure: Procedure, given: Mapping[str, Any], error: Exception) -> None:
        if isinstance(error, ReadOnlyState):
            what = f"changes the state, but is declared as a read{self.place_of(error)}"
            self.raised.append(Raised(name, _call(name, procedure, given), what, True))
        elif not isinstance(error, MEANT):
            what = f"raised {type(error).__name__}: {error}{self.place_of(error)}"
            self.raised.append(Raised(name, _call(name, procedure, given), what, False))

    def place_of(self, error: BaseException) -> str:
        """Where in the author's file an error came from."""
        own = getattr(sys.modules.get(type(self._environment).__module__), "__file__", None)
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == own]
        return f" (line {lines[-1]})" if lines else ""


def _call(name: str, procedure: Procedure, given: Mapping[str, Any]) -> str:
    shown = (f"{key}={brief(value)}" for key, value in given.items() if key not in procedure.needs)
    return f"{name}({', '.join(shown)})"
