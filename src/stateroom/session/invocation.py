"""Running a tool on a draft: what it is given, and how everything that can go wrong becomes words for the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.errors import (
    Busy,
    InvalidArguments,
    InvalidState,
    ModelFailed,
    ModelUnavailable,
    ReadOnlyState,
    TamperedState,
    TimedOut,
    ToolError,
)
from stateroom.session.containment import Asked, contained
from stateroom.session.log import LogEntry
from stateroom.session.parameters import Ask, SessionInfo
from stateroom.session.program import Operation, Procedure
from stateroom.session.progress import Clock, Progress
from stateroom.session.resource import Used
from stateroom.session.runner import Runner
from stateroom.state import (
    ENDED,
    Change,
    DraftContext,
    Event,
    EventContext,
    Patch,
    State,
    commit,
    draft_of,
    leave_spares,
    refuse_tampering,
)

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = MappingProxyType({})

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of arguments that a tool cannot change."""

READ_ONLY = "this state may only be read; change it in a tool with effect='write'"


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

`needs_input`: the tool asked a question, and is to be called again, with the same id, when it is answered.
`shared_conflict`: another session changed a shared state first, and its type says to reject then. `tool_error` is what
the author's code told the model, and `tool_failed` what it did not mean to happen.
"""


class Result(msgspec.Struct, frozen=True):
    """The result of a call: an output, or an error that is fit for the model to read."""

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


class Failed(Exception):
    """A call failed; the message is for the model."""

    tampered = False
    """True when the tool may have changed committed state in memory."""

    def __init__(self, message: str, code: Code = "tool_failed") -> None:
        super().__init__(message)
        self.code: Code = code


class Ran(msgspec.Struct, frozen=True):
    """A run that went well: where it began, the output, and what became of the state."""

    revision: int
    base: Any
    output: Any
    patch: Patch
    state: Any
    progress: Progress
    advanced: float
    shared: Mapping[str, Change] = NOTHING
    """What became of the shared states that it changed."""
    events: Sequence[Event] = ()
    """What the tool has emitted, in order."""
    used: Used | None = None
    """What became of the resources that it asks for."""


class Scene(msgspec.Struct, frozen=True):
    """What a function of the author's may be given: where in a session it runs."""

    state: State | None
    progress: Progress
    session: str
    revision: int
    task: Callable[[], Any]
    """Gives a new copy of the typed task."""
    call_id: str | None
    spares: dict[int, Any] | None = None
    shared: Mapping[str, Any] = NOTHING
    """The shared states that are asked for."""
    resources: Mapping[str, Any] = NOTHING
    """The resources that are asked for."""
    answers: Sequence[Any] = ()
    """What the call was told, when it had asked."""

    def info(self) -> SessionInfo:
        """What there is to know of the session."""
        return SessionInfo(self.session, self.progress.steps, self.task(), self.call_id)

    def fill(
        self, procedure: Procedure, arguments: dict[str, Any], state: Any, shared: Mapping[str, Any]
    ) -> Clock | None:
        """Add what the function asks for by name; gives the clock, if that is part of it."""
        needs = procedure.needs
        clock = None
        if "state" in needs:
            arguments["state"] = state
            if len(needs) == 1:
                return None
        arguments.update(shared)
        arguments.update(self.resources)
        if "session" in needs:
            arguments["session"] = self.info()
        if "rng" in needs:
            arguments["rng"] = self.progress.rng()
        if "new_id" in needs:
            arguments["new_id"] = self.progress.new_id()
        if "ask" in needs:
            arguments["ask"] = Ask(self.answers)
        if "clock" in needs:
            clock = arguments["clock"] = self.progress.clock()
        return clock


def plain_arguments(arguments: Mapping[str, Any] | None, call_id: str | None) -> dict[str, Any]:
    """The arguments of a call as JSON data of our own; `Failed` if they or the call id cannot be any."""
    if type(arguments) is not dict and not isinstance(arguments, Mapping | None):
        message = "the arguments of a call must be an object: a value for each parameter, by name"
        raise Failed(message, "invalid_arguments")
    if call_id is not None and not (isinstance(call_id, str) and call_id.isprintable()):
        raise Failed("a call id is a text of printable characters", "invalid_arguments")
    try:
        plain: dict[str, Any] = to_jsonable_python(dict(arguments or {}))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        message = "the arguments of a call must be JSON, and not nested too deeply"
        raise Failed(message, "invalid_arguments") from error
    return plain


def failed(failure: Failed | InvalidArguments) -> Result:
    """The result of a call that failed."""
    if isinstance(failure, InvalidArguments):
        return Result(False, None, str(failure), "invalid_arguments", failure.fields)
    return Result(False, None, str(failure), failure.code)


def recorded(entry: LogEntry | None) -> Result:
    """The result of a call that is in the log."""
    assert entry is not None
    if entry.kind == "failed":
        return Result(False, None, entry.facts["error"], entry.facts.get("code", "tool_failed"))
    return Result(True, entry.output)


def find_tool(tools: Mapping[str, Operation], name: str) -> Operation:
    """The tool of this name; `Failed` if there is none."""
    tool = tools.get(name)
    if tool is None:
        raise Failed(
            f"there is no tool named {name!r}; there are: {', '.join(sorted(tools)) or 'none'}", "unknown_tool"
        )
    return tool


def bound(tool: Operation, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for one run of a tool: what it does to them is not done to what was given."""
    return tool.bind(given if PLAIN.issuperset(map(type, given.values())) else to_jsonable_python(given))


async def run_tool(runner: Runner, tool: Operation, arguments: dict[str, Any], scene: Scene, timeout: float) -> Ran:
    """Run a tool in a scene, with arguments that are `bound`; raises `Failed`, and then nothing has changed."""
    reads = tool.effect == "read"
    closed = f"{tool.name} is declared as a read, so it cannot change state" if reads else None
    if by_events := scene.state is not None and not reads and bool(scene.state.__appliers__):
        desk: DraftContext = EventContext(scene.state, scene.spares)
    else:
        desk = DraftContext(closed, scene.spares)
    draft = None if scene.state is None else draft_of(scene.state, desk)
    drafts = (
        {name: draft_of(state, DraftContext(closed)) for name, state in scene.shared.items()} if scene.shared else {}
    )
    clock = scene.fill(tool.procedure, arguments, draft, drafts)
    state: Any = scene.state
    patch: Patch = []
    shared: Mapping[str, Change] = NOTHING
    try:
        try:
            try:
                pace = runner.paces.get(tool.procedure.function)
                if pace is not None and pace.on_loop:
                    returned = pace.timed(tool.procedure.function, arguments)
                else:
                    returned = await runner.run(tool.procedure, arguments, timeout)
            finally:  # first of all: a thread that goes on by itself changes nothing any more
                desk.closed = ENDED
                for one in drafts.values():
                    one._draft_desk.closed = ENDED
            output = to_jsonable_python(returned)
            del returned
            arguments.clear()  # nothing here holds on to the draft
            if drafts:
                shared = _commit_shared(drafts, reads)
            if draft is not None:
                if reads:
                    refuse_tampering(draft)
                    leave_spares(draft)
                else:
                    if by_events:
                        desk.end(draft)
                    state, patch = commit(draft)
        except BaseException:
            with contained:
                raise
    except Busy:
        raise  # it was not run
    except (Exception, Asked) as error:
        raise _failure(tool, error, draft, *drafts.values()) from error
    advanced = clock.advanced if clock else 0.0
    return Ran(scene.revision, scene.state, output, patch, state, scene.progress, advanced, shared, tuple(desk.emitted))


def _commit_shared(drafts: Mapping[str, Any], reads: bool) -> dict[str, Change]:
    """What became of the shared states, of those that changed."""
    if reads:
        for draft in drafts.values():
            refuse_tampering(draft)
        return {}
    changes = {name: commit(draft) for name, draft in drafts.items()}
    return {name: change for name, change in changes.items() if change.patch}


def _failure(tool: Operation, error: BaseException, *drafts: Any) -> Failed:
    """A failure in words for the model, which knows whether the tool tampered with the state."""
    code: Code = "tool_failed"
    if isinstance(error, ToolError):
        code, message = "tool_error", str(error) or f"{tool.name} failed"
    elif isinstance(error, Asked):
        code, message = "needs_input", str(error)
    elif isinstance(error, TimedOut):
        code, message = "timeout", f"{tool.name} did not finish within {error}"
    elif isinstance(error, InvalidState | ReadOnlyState | ModelFailed | ModelUnavailable):
        message = f"{tool.name} failed: {error}"
    elif isinstance(error, PydanticSerializationError):
        logger.warning("%s returned something that is not JSON: %s", tool.name, error)
        message = f"{tool.name} failed: what it returned cannot be written as JSON"
    else:
        logger.warning("%s raised", tool.name, exc_info=error)
        message = f"{tool.name} failed: unexpected {type(error).__name__}"
    failure = Failed(message, code)
    failure.tampered = has_tampered(*drafts)
    return failure


def has_tampered(*drafts: Any) -> bool:
    """Whether what a function did to its drafts may have changed committed state in memory."""
    try:
        for draft in drafts:
            refuse_tampering(draft)
    except TamperedState:
        return True
    return False
