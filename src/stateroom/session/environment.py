"""The interface between sessions and an environment: the functions that its author wrote.

`stateroom.environment` makes these from an author's class; this module is the seam between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol

from stateroom.session.lifecycle import Lifecycle
from stateroom.session.parameters import SHARED
from stateroom.session.resource import Resource
from stateroom.state import State

Effect = Literal["read", "write", "external"]


@dataclass(frozen=True)
class Procedure:
    """A function of the author, with the names of the parameters to inject."""

    function: Callable[..., Any]
    needs: frozenset[str]
    timeout: float | None = None
    resources: frozenset[str] = frozenset()
    """The resources among its needs."""

    @cached_property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.function)

    @cached_property
    def shared(self) -> frozenset[str]:
        """The shared states that it needs."""
        return self.needs & SHARED


class SessionTool(Protocol):
    """A tool, as a session sees it."""

    @property
    def name(self) -> str: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def retries_unknown(self) -> bool: ...
    @property
    def returns_text(self) -> bool:
        """Whether it must return a text or None: it is a hook, which a model cannot call."""

    @property
    def procedure(self) -> Procedure: ...
    @property
    def definition(self) -> dict[str, Any]:
        """The tool as an OpenAI function, for a model."""

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Validate arguments, and return copies by parameter. Raises `InvalidArguments`."""


class SessionEnvironment(Protocol):
    """An environment, as a session sees it."""

    @property
    def name(self) -> str: ...
    @property
    def state_type(self) -> type[State] | None: ...
    @property
    def tools(self) -> Mapping[str, SessionTool]: ...
    @property
    def world_function(self) -> Procedure | None:
        """The function that makes the world, if its sessions share one."""

    @property
    def seed_function(self) -> Procedure: ...
    @property
    def verify_function(self) -> Procedure: ...
    @property
    def reply_tool(self) -> SessionTool | None:
        """The hook that answers the agent's messages, if there is one."""

    @property
    def user_opens(self) -> bool:
        """Whether the user of `reply_tool` speaks first if the task has no user message."""

    @property
    def instructions_tool(self) -> SessionTool | None:
        """The hook that returns the agent's instructions, if there is one."""

    @property
    def lifecycle(self) -> Lifecycle:
        """The moves that its agents can make."""

    @property
    def shared_types(self) -> Mapping[str, type[State]]:
        """The types of the shared states, by name."""

    @property
    def shared_seed_functions(self) -> Mapping[str, Procedure]:
        """The functions that make the first value of each shared state."""

    @property
    def resources(self) -> Mapping[str, Resource[Any]]:
        """The resources of its sessions, by name."""

    def parse_task(self, row: Any) -> Any:
        """The typed task of a row; raises `BadTask`."""

    def parse_incomplete_task(self, row: Any) -> Any:
        """The typed task of a row that may lack required fields; reading a missing one raises `MissingField`."""

    def missing_fields(self, row: Any) -> list[str]:
        """The required fields that a row lacks."""

    def user_of(self, task: Any) -> str:
        """The user of a task; raises `BadTask`."""
