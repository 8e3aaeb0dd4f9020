"""Running a tool on a draft: its parameters, and its failures as messages for the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.errors import (
    Busy,
    InvalidState,
    ModelFailed,
    ModelUnavailable,
    ReadOnlyState,
    TamperedState,
    TimedOut,
    ToolError,
)
from stateroom.session.containment import Asked, cause_of, contained
from stateroom.session.environment import Procedure, SessionTool
from stateroom.session.parameters import Ask, SessionInfo
from stateroom.session.progress import Clock, Progress
from stateroom.session.resource import Used
from stateroom.session.result import Code, Failed
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
    ensure_untampered,
    pool_drafts,
)

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = MappingProxyType({})

NO_CHANGE = Change(None, [])

READ_ONLY = "this state is read-only; change it in a tool with effect='write'"


class ToolRun(msgspec.Struct, frozen=True, gc=False):
    """A successful run: where it began, its output, and the new state."""

    revision: int
    base: Any
    output: Any
    patch: Patch
    state: Any
    progress: Progress
    advanced: float
    shared: Mapping[str, Change] = NOTHING
    """The shared states that it changed."""
    events: Sequence[Event] = ()
    """The events that the tool emitted, in order."""
    used: Used | None = None
    """Its effect on the resources that it needs."""


class CallContext(msgspec.Struct, frozen=True, gc=False):
    """The context of a run: the values that an author's function can take as parameters."""

    state: State | None
    progress: Progress
    session: str
    revision: int
    task: Callable[[], Any]
    """Gives a new copy of the typed task."""
    call_id: str | None
    pool: dict[int, Any] | None = None
    shared: Mapping[str, Any] = NOTHING
    """The shared states that are asked for."""
    resources: Mapping[str, Any] = NOTHING
    """The resources that are asked for."""
    answers: Sequence[Any] = ()
    """The answers to the call's questions."""
    user: str | None = None
    """Whose call it is, if a user was named."""

    def info(self) -> SessionInfo:
        """Information about the session."""
        return SessionInfo(self.session, self.progress.steps, self.task(), self.call_id, self.user)

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
        if "task" in needs:
            arguments["task"] = self.task()
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
        message = "the arguments of a call must be an object with a value for each parameter"
        raise Failed(message, "invalid_arguments")
    if call_id is not None and not (isinstance(call_id, str) and call_id and call_id.isprintable()):
        raise Failed("a call id must be a text of printable characters, and not empty", "invalid_arguments")
    try:
        plain: dict[str, Any] = to_jsonable_python(arguments if type(arguments) is dict else dict(arguments or {}))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        message = "the arguments of a call must be JSON that is not nested too deeply"
        raise Failed(message, "invalid_arguments") from error
    return plain


async def run_tool(runner: Runner, tool: SessionTool, arguments: dict[str, Any], call: CallContext) -> ToolRun:
    """Run a tool, with arguments that are bound; raises `Failed`, and then nothing has changed."""
    reads = tool.effect == "read"
    read_only = f"{tool.name} is declared as a read, so it cannot change state" if reads else None
    if call.state is not None and call.state.__appliers__ and not reads:
        context: DraftContext = EventContext.of(call.state, call.pool)
    else:
        context = DraftContext(read_only, call.pool)
    draft = None if call.state is None else draft_of(call.state, context)
    shared_context = DraftContext(read_only) if call.shared else context
    drafts = {name: draft_of(state, shared_context) for name, state in call.shared.items()} if call.shared else {}
    clock = call.fill(tool.procedure, arguments, draft, drafts)
    change, shared = NO_CHANGE, NOTHING
    try:
        try:
            try:
                pace = runner.paces.get(tool.procedure.function)
                if pace is not None and pace.on_loop:
                    returned = pace.run(tool.procedure.function, arguments)
                else:
                    returned = await runner.run(tool.procedure, arguments)
            finally:  # first of all: a thread that goes on by itself changes nothing any more
                context.closed = shared_context.closed = ENDED
            output = to_jsonable_python(returned)
            del returned
            arguments.clear()  # nothing here holds on to the draft
            if drafts:
                ended = {name: _finish(one, shared_context, reads) for name, one in drafts.items()}
                shared = {name: one for name, one in ended.items() if one.patch}
            if draft is not None:
                change = _finish(draft, context, reads)
        except BaseException:  # as `with contained:` around all of it would do, at no cost when nothing is raised
            with contained:
                raise
    except Busy:
        raise  # it was not run
    except (Exception, Asked) as error:
        raise _failure(tool, error, draft, *drafts.values()) from error
    if tool.returns_text and not isinstance(output, str | None):
        raise Failed(f"it must return str or None, not {output!r:.100}")
    return ToolRun(
        call.revision,
        call.state,
        output,
        change.patch,
        change.state,
        call.progress,
        clock.advanced if clock else 0.0,
        shared,
        tuple(context.emitted),
    )


def _finish(draft: Any, context: DraftContext, reads: bool) -> Change:
    """The result of a draft; raises if it is not allowed."""
    if reads:
        ensure_untampered(draft)
        pool_drafts(draft)
        return Change(draft._draft_base, [])
    if isinstance(context, EventContext):
        context.check_events(draft)
    return commit(draft)


def _failure(tool: SessionTool, error: BaseException, *drafts: Any) -> Failed:
    """A failure in words for the model, which knows whether the tool tampered with the state."""
    code: Code = "tool_failed"
    if isinstance(error, ToolError):
        code, message = "tool_error", str(error) or f"{tool.name} failed"
    elif isinstance(error, Asked):
        code, message = "needs_input", str(error)
    elif isinstance(error, TimedOut):
        code, message = "timeout", f"{tool.name} did not finish within {error}"
        logger.warning(message)
    elif isinstance(error, InvalidState | ReadOnlyState | ModelFailed | ModelUnavailable):
        message = f"{tool.name} failed: {error}"
        logger.warning(message)
    elif isinstance(error, PydanticSerializationError):
        logger.warning("%s returned something that is not JSON: %s", tool.name, error)
        message = f"{tool.name} failed: its output cannot be written as JSON"
    else:
        logger.warning("%s raised", tool.name, exc_info=error)
        message = f"{tool.name} failed: unexpected {type(error).__name__}"
    unexpected = code in ("tool_failed", "timeout")
    failure = Failed(message, code, cause_of(error, tool.procedure.function) if unexpected else None)
    failure.tampered = has_tampered(*drafts)
    return failure


def has_tampered(*drafts: Any) -> bool:
    """Whether what a function did to its drafts may have changed committed state in memory."""
    try:
        for draft in drafts:
            ensure_untampered(draft)
    except TamperedState:
        return True
    return False
