"""What a session runs: the functions that an author wrote, as the session needs to know them.

`stateroom.environment` makes these from an author's class; this module is the seam between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from stateroom.errors import DefinitionError
from stateroom.session.lifecycle import Lifecycle
from stateroom.state import State

if TYPE_CHECKING:
    from stateroom.session.journal import LogEntry
    from stateroom.session.path import Path
    from stateroom.session.rehearsal import Rehearsal
    from stateroom.session.resources import Resource

Effect = Literal["read", "write", "external"]

SHARED = frozenset({"user", "app"})
"""States that sessions have in common: of the task's user, and of the whole environment."""

INJECTED = ("state", "session", "rng", "clock", "new_id", "ask", *sorted(SHARED))
"""Parameters that the session fills in by name; the model never sees them."""


@dataclass(frozen=True)
class Procedure:
    """A function of the author's, and which of the session's things it asks for by name."""

    function: Callable[..., Any]
    needs: frozenset[str]
    is_async: bool
    timeout: float | None = None
    resources: frozenset[str] = frozenset()
    """Those of its needs that are resources."""

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
    @property
    def definition(self) -> dict[str, Any]:
        """What a model is told of it, as an OpenAI function."""

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
    def founding(self) -> Procedure | None:
        """What makes the world that its sessions start from, if they share one."""

    @property
    def seeding(self) -> Procedure: ...
    @property
    def verifying(self) -> Procedure: ...
    @property
    def replying(self) -> Operation | None:
        """What answers the agent's messages, if anything does."""

    @property
    def lifecycle(self) -> Lifecycle:
        """The moves that its agents can make."""

    @property
    def shared_types(self) -> Mapping[str, type[State]]:
        """The types of the shared states that there are."""

    @property
    def seeding_shared(self) -> Mapping[str, Procedure]:
        """What gives each of them on its first use."""

    @property
    def resources(self) -> Mapping[str, Resource[Any]]:
        """What its sessions have outside, by name."""

    def parse_task(self, row: Any) -> Any:
        """The typed task of a row; raises `BadTask`."""

    def user_of(self, task: Any) -> str:
        """Whose task it is; raises `BadTask`."""


@dataclass(frozen=True)
class SessionInfo:
    """What a tool that asks for `session` learns of the session it works in."""

    id: str
    step: int
    """How many calls have changed the state before."""
    task: Any
    call_id: str | None = None


class PathNotLoaded(BaseException):
    """A verifier looks back, and what it looks at was not read yet. Nothing of the author's is to catch it."""


class Asked(BaseException):
    """A tool asks somebody, who has not answered yet. Nothing of the author's is to catch it."""


class Ask:
    """Lets a tool ask a person: `answer = ask("Shall I pay 300?")`.

    The first time, the call ends there: nothing has changed, and the session waits. When there is an answer the tool
    runs again from its start, and is given it. So it asks before it does anything that lasts.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = iter(answers)

    def __call__(self, question: str) -> Any:
        try:
            return next(self._answers)
        except StopIteration:
            raise Asked(str(question)) from None


class Episode:
    """What a verifier judges: the task, what the agent answered, and the path that led to the state."""

    __slots__ = ("_path", "_rehearsal", "_response", "path_is_missed", "response_was_read", "task")

    def __init__(self, task: Any, response: Any = None, rehearsal: Rehearsal | None = None) -> None:
        self.task = task
        self._response = response
        self._rehearsal = rehearsal
        self._path: Path | None = None
        self.response_was_read = False
        """Whether the verdict may have to do with the response."""
        self.path_is_missed = False
        """Whether the verifier has looked back in vain, so that what it came to does not count."""

    @property
    def response(self) -> Any:
        """The Responses object with the whole trajectory, as a dict; None when there is none."""
        self.response_was_read = True
        return self._response

    def calls(self) -> Sequence[LogEntry]:
        """The committed calls that led from the seed to the state, each with `name`, `input`, `output` and `at`.

        A fork's begin with its parent's, and what a rewind undid is not among them. Reads and failed calls change
        nothing, so they are only in `response`. Without a state nothing is committed, and there are none.
        """
        return self._loaded().calls

    def states(self) -> Sequence[Any]:
        """The states on the way, to be read: `states()[0]` is the seeded one, `states()[k + 1]` that after call k.

        Each is made when it is asked for. Without a state there are none.
        """
        return self._loaded().states

    async def after(self, actions: Iterable[Mapping[str, Any]], *, external: bool = False) -> Any:
        """The state that other actions would have led to from the seed, to be read: `await episode.after(task.gold)`.

        An action is a call, `{"name": "pay", "arguments": {"amount": 3}}`, or something said to the user who answers
        here, `{"message": "May I?"}`. Nothing is stored. Reads are left out. Tools that reach outside are refused,
        unless the verifier knows that what they reach is made up: then they run with `external=True`.
        Raises `BadTask` if an action cannot be carried out.
        """
        if self._rehearsal is None:
            raise DefinitionError("episode.after() starts from a session's first state, and there is none here")
        return await self._rehearsal.after(actions, external=external)

    def look_back(self, path: Path) -> None:
        """Have the path at hand from now on."""
        self._path, self.path_is_missed = path, False

    def _loaded(self) -> Path:
        if self._path is None:
            self.path_is_missed = True
            raise PathNotLoaded
        return self._path


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
    "needs_input",
    "unknown_outcome",
    "shared_conflict",
]
"""Why a call failed.

`needs_input`: the tool asks somebody, and is to be called again, with the same id, when there is an answer.
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
