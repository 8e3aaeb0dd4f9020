"""All errors that Stateroom raises on purpose: one class for each kind of failure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

Path = tuple[object, ...]

IS_POSIX = os.name == "posix"
"""Whether this is Linux, macOS or another POSIX system, and not Windows."""


class StateroomError(Exception):
    """The base of all errors that Stateroom raises on purpose. A class inherits what it does not set."""

    status: ClassVar[int] = 500
    """The HTTP status of the response."""
    code: ClassVar[str | None] = None
    """The error code in the response, for programs; None for a fault of the server or the environment."""
    failure: ClassVar[str | None] = None
    """The failure class of an episode with this error; None takes it from the component that failed."""
    transient: ClassVar[bool] = False
    """Whether an episode with this error can be resumed later, because the cause lies outside the episode."""

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        code: str | None = None,
        failure: str | None = None,
        transient: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.status = cls.status if status is None else status
        cls.code = code or cls.code
        cls.failure = failure or cls.failure
        cls.transient = cls.transient if transient is None else transient


class DefinitionError(StateroomError):
    """A class, such as a state or an environment, is not defined correctly."""


class InvalidState(StateroomError):
    """A state has a value that its type does not allow."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{format_path(path)}: {message}" if path else message)
        self.path = path


class TamperedState(InvalidState):
    """A tool bypassed change tracking, so the state in memory cannot be trusted."""


class ReadOnlyState(StateroomError):
    """A state was changed where it is read-only."""


class BadData(StateroomError):
    """Stored bytes cannot be decoded."""


class ToolError(StateroomError):
    """Raise it in a tool to fail the call with a message for the model."""


class InvalidArguments(StateroomError, status=422, code="invalid_arguments"):
    """The arguments of a tool call do not fit the tool's parameters; `fields` has the problem with each."""

    def __init__(self, message: str, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.fields = dict(fields)


class InvalidOption(InvalidArguments):
    """An option has an invalid value, or conflicts with another option."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}", {option: message})
        self.option = option
        self.message = message


class TimedOut(StateroomError, status=504, code="timeout", failure="environment"):
    """A tool, verifier or other user function exceeded its time limit."""


class BadTask(StateroomError, status=422, code="invalid_task"):
    """A row of task data cannot be used."""


class MissingField(BadTask, AttributeError):
    """A task field was read that is missing until the verify request sends it."""


class EnvironmentFailed(StateroomError, failure="environment"):
    """A tool, verifier or other user function raised an unexpected error."""


class TooLarge(StateroomError, status=413, code="too_large"):
    """A state or a request exceeds its size limit."""


class Unauthorized(StateroomError, status=401, code="unauthorized"):
    """A request has no valid token: it is missing, forged, expired, or for another environment."""


class UnknownKey(Unauthorized):
    """A request needs an API key, and has none or an unknown one."""


class RateLimited(StateroomError, status=429, code="rate_limited"):
    """An API key has used up its limit for this minute; retry after `seconds`."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


class Forbidden(StateroomError, status=403, code="forbidden"):
    """This client or origin is not allowed to make the request."""


class Busy(StateroomError, status=503, code="busy", transient=True):
    """The server is at capacity; retry shortly."""


class BadVerdict(StateroomError, failure="environment"):
    """A verifier returned something that is not a reward."""


class ModelFailed(StateroomError, status=502, code="model_failed", failure="model"):
    """A model or policy raised an error, refused a request, or gave an unusable answer."""


class ModelUnavailable(StateroomError, status=503, code="model_unavailable", failure="model", transient=True):
    """A model is temporarily unreachable or overloaded."""


class JudgeFailed(StateroomError, status=500, code="judge_failed", failure="judge", transient=True):
    """A judge model returned no readable score, so the episode has no reward yet."""


class ContextOverflow(StateroomError, status=413, code="context_overflow", failure="model"):
    """The required input exceeds the token budget of the model."""


class InvalidMove(StateroomError, status=409, code="invalid_move"):
    """An agent cannot make this move in its current phase."""

    def __init__(self, phase: str, event: str, possible: str) -> None:
        super().__init__(f"an agent that is {phase!r} cannot make the move {event!r}; possible moves: {possible}")
        self.phase = phase
        self.event = event


class NotFound(StateroomError, status=404, code="not_found"):
    """A name given by the user (an environment, a policy, a file) does not exist."""


class InvalidModel(StateroomError):
    """A model cannot be used: its name, address, key, class or file is invalid."""


class InvalidEnvironment(StateroomError):
    """The value given as an environment is not one, or its constructor raised an error."""


class CannotImport(StateroomError):
    """A module with an environment, a model or a policy raised an error when it was imported."""


class MissingPackage(NotFound):
    """A part of Stateroom needs a package that is not installed."""

    def __init__(self, what: str, package: str | None, install: str) -> None:
        super().__init__(f"{what} needs {package}: pip install {install}")


class UnsupportedSystem(StateroomError):
    """A part of Stateroom does not work on this operating system."""


def check_posix(what: str, instead: str) -> None:
    """Raise `UnsupportedSystem` on Windows, for a part that needs more than it has."""
    if not IS_POSIX:
        raise UnsupportedSystem(f"{what} needs a POSIX system; on Windows use {instead}")


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import of a package into `MissingPackage`, which names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(what, error.name, f"'stateroom[{extra}]'") from error


class BadConfig(StateroomError):
    """A configuration file is invalid; the message has the file, line and key of each problem."""


class CannotWrite(StateroomError):
    """An output file cannot be written, or already exists."""


class CannotListen(StateroomError):
    """A server cannot listen on its address."""


class ServerUnavailable(StateroomError, failure="server", transient=True):
    """A server is temporarily unreachable or overloaded."""


class EngineFailed(StateroomError):
    """The workers of a run cannot be started, or keep dying."""


class ServerFailed(StateroomError):
    """A server answered that an episode cannot continue."""


class SchemaChanged(StateroomError, status=409, code="schema_changed"):
    """Stored data has a different schema from the code, and no migration connects the two."""


class SessionError(StateroomError, status=409, code="session_error"):
    """The base of errors about one session."""

    def __init__(self, session: str, message: str) -> None:
        super().__init__(message)
        self.session = session


class UnknownSession(SessionError, status=410, code="unknown_session"):
    """No session has this id."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} does not exist in this store")


class SessionExpired(SessionError, status=410, code="session_expired"):
    """The session outlived its time to live."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} has expired")


class SessionClosed(SessionError, status=410, code="session_closed"):
    """The session was closed."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} is closed")


class SessionSealed(SessionError, status=409, code="session_sealed"):
    """The session has a verdict: you can still read and fork its state, but not change it."""

    def __init__(self, session: str, message: str = "it can no longer be changed") -> None:
        super().__init__(session, f"session {session!r} has a verdict: {message}")


class SessionLeased(SessionError, status=503, code="session_leased", failure="store", transient=True):
    """Another worker holds the session's lease."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} is held by another worker; retry shortly")


class UnknownRevision(SessionError, status=404, code="unknown_revision"):
    """The session has no such revision or checkpoint."""


class CannotFork(SessionError, status=409, code="cannot_fork"):
    """A fork could not reproduce the session at that revision."""

    def __init__(self, session: str, revision: int, why: str) -> None:
        super().__init__(session, f"session {session!r} cannot be forked at revision {revision}: {why}")
        self.revision = revision


class CannotRewind(SessionError, status=409, code="cannot_rewind"):
    """A rewind could not restore the session to that revision."""

    def __init__(self, session: str, revision: int, why: str) -> None:
        super().__init__(session, f"session {session!r} cannot go back to revision {revision}: {why}")
        self.revision = revision


class Conflict(SessionError, status=409, code="conflict", failure="store", transient=True):
    """Another writer committed to the session first; `revision` is the expected one."""

    def __init__(self, session: str, revision: int, message: str | None = None) -> None:
        super().__init__(session, message or f"session {session!r} is no longer at revision {revision}")
        self.revision = revision


class Contradiction(StateroomError, status=409, code="conflict"):
    """A request contradicts an earlier one of its client or session; repeating it does not help."""


class DuplicateCall(SessionError):
    """A call with this id is already committed in this session."""

    def __init__(self, session: str, call_id: str) -> None:
        super().__init__(session, f"call {call_id!r} of session {session!r} is already committed")
        self.call_id = call_id


class StoreError(StateroomError, failure="store", transient=True):
    """The base of errors about a store as a whole."""


class UnknownStore(StoreError):
    """A store URL is invalid, or no installed store serves its scheme."""


class StoreUnavailable(StoreError, status=503, code="store_unavailable"):
    """A store temporarily cannot be opened, read or written."""


class ForeignStore(StoreError):
    """The URL does not lead to a Stateroom store, or leads to one of a newer version."""


class OutdatedRecord(StoreError):
    """A store already has a later revision of the session, or another session with its id."""

    def __init__(self, session: str) -> None:
        super().__init__(f"the store has a later revision of session {session!r}, or another session with this id")


class StoreFull(StoreError, status=503, code="busy"):
    """A bounded store has reached its maximum number of sessions."""


ERRORS: tuple[type[StateroomError], ...] = tuple(
    kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, StateroomError)
)
"""All error classes."""

MAX_TEXT_CHARACTERS = 10_000
"""Longer error texts and log lines are shortened to this."""


def shortened(text: str) -> str:
    """A text, with the middle cut out if it is too long for a log."""
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    half = MAX_TEXT_CHARACTERS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters left out … {text[-half:]}"


def format_path(path: Path) -> str:
    """Write a path the way the author would: `orders[3].lines['a'].price`."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text
