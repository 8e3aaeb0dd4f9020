"""Every error a user of Stateroom can meet: one class per thing that can go wrong, each with one sentence."""

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
    """The base of all errors that Stateroom raises on purpose. What a class does not say it has from its base."""

    status: ClassVar[int] = 500
    """The status of a response."""
    code: ClassVar[str | None] = None
    """The code of a response, for programs; None: a fault of the server or the environment."""
    failure: ClassVar[str | None] = None
    """The class of failures of episodes; None: that of what failed."""
    transient: ClassVar[bool] = False
    """Whether an episode that failed so can be resumed later, for the failure is not its own."""

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
    """A class that an author wrote cannot be used as written."""


class InvalidState(StateroomError):
    """A state holds, or was given, a value that its type does not allow."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{format_path(path)}: {message}" if path else message)
        self.path = path


class TamperedState(InvalidState):
    """A tool changed a state in a way that could not be seen, so the state in memory cannot be trusted."""


class ReadOnlyState(StateroomError):
    """A state was changed where it may only be read."""


class BadData(StateroomError):
    """Stored bytes cannot be decoded."""


class ToolError(StateroomError):
    """Raised by a tool to tell the model, in the author's own words, why the call failed."""


class InvalidArguments(StateroomError, status=422, code="invalid_arguments"):
    """The arguments of a tool call do not fit the tool's parameters; `fields` says what is wrong with which."""

    def __init__(self, message: str, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.fields = dict(fields)


class InvalidOption(InvalidArguments):
    """An option has a value that it cannot have, alone or with another one."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}", {option: message})
        self.option = option
        self.message = message


class TimedOut(StateroomError, status=504, code="timeout", failure="environment"):
    """A function of the author's took longer than it may."""


class BadTask(StateroomError, status=422, code="invalid_task"):
    """A row of task data cannot be used."""


class MissingField(BadTask, AttributeError):
    """A field of a task was read that its row lacks, because it is to come with the request that verifies."""


class EnvironmentFailed(StateroomError, failure="environment"):
    """A function of the author's raised what it was not meant to."""


class TooLarge(StateroomError, status=413, code="too_large"):
    """A state, or a request, is larger than it may be."""


class Unauthorized(StateroomError, status=401, code="unauthorized"):
    """A request came without a token, or with one that is forged, altered, out of date or of another environment."""


class UnknownKey(Unauthorized):
    """A request came without an API key where one is needed, or with one that is not known."""


class RateLimited(StateroomError, status=429, code="rate_limited"):
    """An API key has had as much as it may in this minute; `seconds` from now there is more."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


class Forbidden(StateroomError, status=403, code="forbidden"):
    """This client, or this origin, may not make the request."""


class Busy(StateroomError, status=503, code="busy", transient=True):
    """As much is going on as may; the same request will do a little later."""


class BadVerdict(StateroomError, failure="environment"):
    """A verifier returned something that is not a reward."""


class ModelFailed(StateroomError, status=502, code="model_failed", failure="model"):
    """A model, or a policy that stands for one, raised, refused a request, or gave an answer that is of no use."""


class ModelUnavailable(StateroomError, status=503, code="model_unavailable", failure="model", transient=True):
    """A model cannot be reached, or is too busy, just now."""


class JudgeFailed(StateroomError, status=500, code="judge_failed", failure="judge", transient=True):
    """A judge's model gave no score that can be read: the episode has no reward yet."""


class ContextOverflow(StateroomError, status=413, code="context_overflow", failure="model"):
    """What a model must be shown does not fit into the tokens that it may be shown."""


class InvalidMove(StateroomError, status=409, code="invalid_move"):
    """An agent's lifecycle has no such move from where it stands."""

    def __init__(self, phase: str, event: str, possible: str) -> None:
        super().__init__(f"an agent that is {phase!r} cannot make the move {event!r}; it can: {possible}")
        self.phase = phase
        self.event = event


class NotFound(StateroomError, status=404, code="not_found"):
    """A name given by the user (an environment, a policy, a file) does not exist."""


class InvalidModel(StateroomError):
    """A model cannot be used: its name, address, key, class or file is not right."""


class InvalidEnvironment(StateroomError):
    """What was given as an environment is not one, or its constructor raised an error."""


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
    """Imports of packages that come with an extra."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(what, error.name, f"'stateroom[{extra}]'") from error


class BadConfig(StateroomError):
    """A configuration file says something that cannot be meant; each problem with its file, line and key."""


class CannotWrite(StateroomError):
    """A file that a run is to write cannot be written, or is there already."""


class CannotListen(StateroomError):
    """A server cannot have the address that it is to listen on."""


class ServerUnavailable(StateroomError, failure="server", transient=True):
    """A server cannot be reached, or is too busy, just now."""


class EngineFailed(StateroomError):
    """The workers of a run cannot be started, or die again and again."""


class ServerFailed(StateroomError):
    """A server answered that an episode cannot go on."""


class SchemaChanged(StateroomError, status=409, code="schema_changed"):
    """What is stored is of another schema than the code that reads it, and no migration leads from one to the other."""


class SessionError(StateroomError, status=409, code="session_error"):
    """The base of errors about one session."""

    def __init__(self, session: str, message: str) -> None:
        super().__init__(message)
        self.session = session


class UnknownSession(SessionError, status=410, code="unknown_session"):
    """No session has this id."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"there is no session {session!r} in this store")


class SessionExpired(SessionError, status=410, code="session_expired"):
    """The session outlived its time to live."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} has expired")


class SessionClosed(SessionError, status=410, code="session_closed"):
    """The session was closed."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} is closed")


class SessionSealed(SessionError, status=409, code="session_sealed"):
    """The session was judged: its state can be read and forked, but no longer changed."""

    def __init__(self, session: str, message: str = "nothing can be changed any more") -> None:
        super().__init__(session, f"session {session!r} has its verdict: {message}")


class SessionLeased(SessionError, status=503, code="session_leased", failure="store", transient=True):
    """Another worker has the session for itself just now."""

    def __init__(self, session: str) -> None:
        super().__init__(session, f"session {session!r} is held by another worker; try again a little later")


class UnknownRevision(SessionError, status=404, code="unknown_revision"):
    """The session has no such revision or checkpoint."""


class CannotFork(SessionError, status=409, code="cannot_fork"):
    """A fork would not be what the session was at that revision."""

    def __init__(self, session: str, revision: int, why: str) -> None:
        super().__init__(session, f"session {session!r} cannot be forked at revision {revision}: {why}")
        self.revision = revision


class CannotRewind(SessionError, status=409, code="cannot_rewind"):
    """A session could not be again what it was at that revision."""

    def __init__(self, session: str, revision: int, why: str) -> None:
        super().__init__(session, f"session {session!r} cannot go back to revision {revision}: {why}")
        self.revision = revision


class Conflict(SessionError, status=409, code="conflict", failure="store", transient=True):
    """Somebody else committed to the session first; `revision` is the one that was expected."""

    def __init__(self, session: str, revision: int, message: str | None = None) -> None:
        super().__init__(session, message or f"session {session!r} is no longer at revision {revision}")
        self.revision = revision


class Contradiction(StateroomError, status=409, code="conflict"):
    """A request contradicts what its client, or its session, has done before: the same again is refused, too."""


class DuplicateCall(SessionError):
    """The call id was committed in this session before."""

    def __init__(self, session: str, call_id: str) -> None:
        super().__init__(session, f"call {call_id!r} of session {session!r} was committed before")
        self.call_id = call_id


class StoreError(StateroomError, failure="store", transient=True):
    """The base of errors about a store as a whole."""


class UnknownStore(StoreError):
    """A store URL cannot be understood, or names a scheme that nothing here serves."""


class StoreUnavailable(StoreError, status=503, code="store_unavailable"):
    """A store cannot be opened, read or written just now."""


class ForeignStore(StoreError):
    """What lies at the URL is not a Stateroom store, or one of a newer version."""


class OutdatedRecord(StoreError):
    """A store has a later moment of the session in a record, or another session with its id."""

    def __init__(self, session: str) -> None:
        super().__init__(f"there is another session {session!r} already, or a later moment of this one")


class StoreFull(StoreError, status=503, code="busy"):
    """A bounded store holds as many sessions as it may."""


ERRORS: tuple[type[StateroomError], ...] = tuple(
    kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, StateroomError)
)
"""All classes of errors."""

MAX_TEXT_CHARACTERS = 10_000
"""Characters of an error's text, or of a line of a log, that are kept."""


def shortened(text: str) -> str:
    """A text, or the beginning and the end of one that is too long for a log: what failed may be as large as a body."""
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
