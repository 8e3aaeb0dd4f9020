"""What a session runs: the functions that an author wrote, as the session needs to know them.

`stateroom.environment` makes these from an author's class; this module is the seam between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec

from stateroom.state import State

Effect = Literal["read", "write", "external"]

SHARED = frozenset({"user", "app"})
"""States that sessions have in common: of the task's user, and of the whole environment."""

INJECTED = ("state", "session", "rng", "clock", "new_id", *sorted(SHARED))
"""Parameters that the session fills in by name; the model never sees them."""


@dataclass(frozen=True)
class Procedure:
    """A function of the author's, and which of the session's things it asks for by name."""

    function: Callable[..., Any]
    needs: frozenset[str]
    is_async: bool
    timeout: float | None = None

    @cached_property
    def shared(self) -> frozenset[str]:
        """The shared states that it asks for."""
        return self.needs & SHARED


class Operation(Protocol):
    """A tool, as a session sees it."""

    @property
    def name(self) -> str: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def retries_unknown(self) -> bool: ...
    @property
    def procedure(self) -> Procedure: ...

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The validated arguments, by parameter; raises `InvalidArguments`."""


class Program(Protocol):
    """An environment, as a session sees it."""

    @property
    def name(self) -> str: ...
    @property
    def state_type(self) -> type[State] | None: ...
    @property
    def tools(self) -> Mapping[str, Operation]: ...
    @property
    def seeding(self) -> Procedure: ...
    @property
    def verifying(self) -> Procedure: ...
    @property
    def shared_types(self) -> Mapping[str, type[State]]:
        """The types of the shared states that there are."""

    @property
    def seeding_shared(self) -> Mapping[str, Procedure]:
        """What gives each of them on its first use."""

    def parse_task(self, row: Any) -> Any:
        """The typed task of a row; raises `BadTask`."""

    def user_of(self, task: Any) -> str:
        """Whose task it is; raises `BadTask`."""


@dataclass(frozen=True)
class SessionInfo:
    """What a tool that asks for `session` learns of the session it works in."""

    id: str
    revision: int
    task: Any
    call_id: str | None = None


class Episode:
    """What a verifier judges: the task, and what the agent answered."""

    __slots__ = ("_response", "response_was_read", "task")

    def __init__(self, task: Any, response: Any = None) -> None:
        self.task = task
        self._response = response
        self.response_was_read = False
        """Whether the verdict may have to do with the response."""

    @property
    def response(self) -> Any:
        """The Responses object with the whole trajectory, as a dict; None when there is none."""
        self.response_was_read = True
        return self._response


@dataclass(frozen=True)
class Verdict:
    """What a verifier found."""

    reward: float
    components: dict[str, float] = field(default_factory=dict)
    """Parts of the reward, by name."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Other numbers worth averaging over episodes."""
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """Other facts that belong in the episode's row."""


Code = Literal[
    "unknown_tool",
    "invalid_arguments",
    "tool_error",
    "tool_failed",
    "timeout",
    "too_large",
    "unknown_outcome",
    "shared_conflict",
]
"""Why a call failed.

`shared_conflict`: another session changed a shared state first, and its type says to reject then. `tool_error` is what
the author's code told the model, and `tool_failed` what it did not mean to happen.
"""


class Result(msgspec.Struct, frozen=True):
    """What a call came to: an output, or an error that is fit for the model to read."""

    ok: bool
    output: Any = None
    error: str | None = None
    code: Code | None = None
    fields: dict[str, str] | None = None
    """For invalid arguments: what is wrong with which."""

    @property
    def content(self) -> Any:
        """What the model is shown."""
        if self.ok:
            return self.output
        error = {"code": self.code, "message": self.error}
        return {"error": {**error, "fields": self.fields} if self.fields else error}
