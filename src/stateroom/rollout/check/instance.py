"""An instance of the environment under check: sessions in memory, errors of tools, and hidden state."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property
from traceback import extract_tb
from typing import Any, NamedTuple, Self

from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.environment import Environment, Tool
from stateroom.errors import InvalidState, ModelFailed, ModelUnavailable, ReadOnlyState, ToolError
from stateroom.rollout.check.findings import Fault
from stateroom.rollout.plan import EPOCH
from stateroom.rollout.rows import Row
from stateroom.session import Procedure, Rescorer, Session, Sessions, contained
from stateroom.state import brief
from stateroom.store import Store, open_store

EXPECTED = (ToolError, InvalidState, ModelFailed, ModelUnavailable)
"""Errors that a tool may raise: the model reads their messages."""

PLAIN = (list, dict, set, str, int, float, type(None))
"""Types of module attributes that are compared; others may be shared with other code."""


class CheckSession(NamedTuple):
    """A session for an episode of a check."""

    session: Session[Any]
    store: Store
    rescorer: Rescorer | None
    """Runs the verifier again; None for a stateless environment, whose sessions can do so themselves."""


class Instance:
    """One instance of an environment, with its sessions in memory."""

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self.environment = environment
        self._before = _attributes(environment)
        self.watched = WatchedEnvironment(environment)
        self._sessions: Sessions[Any]
        self._rescorer: Rescorer | None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._sessions, self._rescorer = await self._stack.enter_async_context(self._open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[Sessions[Any], Rescorer | None]]:
        async with open_store("memory://") as store:
            sessions = Sessions[Any](self.watched, store)
            rescorer = None if self.environment.state_type is None else Rescorer(self.watched, store)
            try:
                yield sessions, rescorer
            finally:
                await sessions.stop()
                if rescorer is not None:
                    await rescorer.stop()

    @asynccontextmanager
    async def seed(self, task: int, row: Row) -> AsyncIterator[CheckSession]:
        """Open a session for a task, identical each time; it is deleted afterwards.

        Sessions with shared states get a separate store each, to isolate episodes.
        """
        async with AsyncExitStack() as stack:
            sessions, rescorer = self._sessions, self._rescorer
            if self.environment.shared_types:
                sessions, rescorer = await stack.enter_async_context(self._open())
            session = await sessions.seed(row, seed=task + 1, began=EPOCH, session_id=f"check-{task}")
            try:
                yield CheckSession(session, sessions.store, rescorer)
            finally:
                sessions.forget(session.id)
                if rescorer is not None:  # a stateless one is not stored
                    await sessions.store.delete(session.id)

    def hidden_state(self) -> list[Fault]:
        """Attributes of the environment, its class or its module that were set or changed since its creation."""
        faults = []
        for place, value in _attributes(self.environment).items():
            old = self._before.get(place)
            if old is None or (old.id != value.id and old.text != value.text):
                in_init = ", or set it in __init__" if place.startswith("self.") else ""
                faults.append(Fault(f"{place} was set in an episode; keep it in the state{in_init}"))
            elif old.text != value.text:
                faults.append(
                    Fault(f"{place} changed in an episode; unless it is a cache, keep it in the state", False)
                )
        return faults


class _Attribute(NamedTuple):
    """The value of an attribute: its identity, and its text."""

    id: int
    text: str


def _attributes(environment: Environment[Any, Any]) -> dict[str, _Attribute]:
    """The attributes of an environment, its classes and its module, except cached properties."""
    return {place: _Attribute(id(value), _text(value)) for place, value in _places(environment)}


def _places(environment: Environment[Any, Any]) -> Iterator[tuple[str, Any]]:
    kind = type(environment)
    once = {name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, cached_property)}
    yield from ((f"self.{name}", value) for name, value in vars(environment).items() if name not in once)
    for each in kind.__mro__[: kind.__mro__.index(Environment)]:
        for name, value in vars(each).items():
            if not (name.startswith("__") or inspect.isroutine(value) or isinstance(value, cached_property)):
                yield f"{each.__name__}.{name}", value
    module = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    yield from (
        (f"the module's {name}", value)
        for name, value in module.items()
        if not name.startswith("__") and isinstance(value, PLAIN)
    )


def _text(value: Any) -> str:
    try:
        with contained:
            return repr(value)
    except Exception as error:  # noqa: BLE001 - the author's class may raise anything
        return type(error).__name__


class ToolFault(NamedTuple):
    """An unexpected error of a tool."""

    tool: str
    call: str
    """The call, as in code."""
    what: str
    is_certain: bool
    """Whether it fails for any arguments; otherwise these arguments may be the cause."""


class WatchedEnvironment:
    """An environment that records the errors of its tools, which a session reports only to the model."""

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self._environment = environment
        self.faults: list[ToolFault] = []
        self.tools = {name: self._watched(tool) for name, tool in environment.tools.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def _watched(self, tool: Tool) -> Tool:
        procedure = tool.procedure

        def call(**given: Any) -> Any:
            with self._watching(tool.name, procedure, given):
                return self._returned(tool.name, procedure, given, procedure.function(**given))

        async def call_async(**given: Any) -> Any:
            with self._watching(tool.name, procedure, given):
                return self._returned(tool.name, procedure, given, await procedure.function(**given))

        return replace(tool, procedure=replace(procedure, function=call_async if procedure.is_async else call))

    @contextmanager
    def _watching(self, name: str, procedure: Procedure, given: Mapping[str, Any]) -> Iterator[None]:
        try:
            with contained:
                yield
        except Exception as error:
            self._raised(name, procedure, given, error)
            raise

    def _returned(self, name: str, procedure: Procedure, given: Mapping[str, Any], value: Any) -> Any:
        try:
            to_jsonable_python(value)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            what = f"returned a {type(value).__name__} that is not JSON ({error})"
            self.faults.append(ToolFault(name, _call(name, procedure, given), what, True))
        return value

    def _raised(self, name: str, procedure: Procedure, given: Mapping[str, Any], error: Exception) -> None:
        if isinstance(error, ReadOnlyState):
            what = f"changes the state, but is declared as a read{self.place_of(error)}"
            self.faults.append(ToolFault(name, _call(name, procedure, given), what, True))
        elif not isinstance(error, EXPECTED):
            what = f"raised {type(error).__name__}: {error}{self.place_of(error)}"
            self.faults.append(ToolFault(name, _call(name, procedure, given), what, False))

    def place_of(self, error: BaseException) -> str:
        """The line of the environment's file that raised an error."""
        own = getattr(sys.modules.get(type(self._environment).__module__), "__file__", None)
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == own]
        return f" (line {lines[-1]})" if lines else ""


def _call(name: str, procedure: Procedure, given: Mapping[str, Any]) -> str:
    shown = (f"{key}={brief(value)}" for key, value in given.items() if key not in procedure.needs)
    return f"{name}({', '.join(shown)})"
