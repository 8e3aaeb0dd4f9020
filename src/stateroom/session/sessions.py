"""`Sessions`: the sessions of one environment in one store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from secrets import randbits
from typing import Any, Generic

from msgspec.structs import replace
from pydantic_core import PydanticSerializationError, ValidationError, to_jsonable_python

from stateroom.errors import (
    BadTask,
    DefinitionError,
    MissingField,
    SessionError,
    UnknownSession,
)
from stateroom.session.cache import OpenSession, SessionCache
from stateroom.session.cached_session import CachedSession, new_session
from stateroom.session.containment import contained
from stateroom.session.environment import SessionEnvironment
from stateroom.session.history import History
from stateroom.session.invocation import has_tampered
from stateroom.session.log import AFTER_VERDICT, UNSTORABLE, VERDICT, WorldStart, checked_text, world_is_gone
from stateroom.session.parameters import SHARED
from stateroom.session.progress import Progress
from stateroom.session.reader import Reader
from stateroom.session.runtime import Runtime, SessionLimits, new_session_id
from stateroom.session.session import S, Session
from stateroom.session.shared import BEGINNING, first_state
from stateroom.session.stateless import StatelessSession
from stateroom.state import ENDED, DraftContext, State, commit, draft_of
from stateroom.store import Store

SHARED_IDS = tuple(f"{name}:" for name in sorted(SHARED | {"world"}))
"""Starts of the ids of worlds and shared states, which no session's id has."""


class Sessions(Generic[S]):
    """Seeds, opens and sweeps the sessions of an environment, within some limits."""

    def __init__(self, environment: SessionEnvironment, store: Store, limits: SessionLimits | None = None) -> None:
        self.runtime = Runtime(environment, store, limits or SessionLimits())
        self.cache = SessionCache(self.runtime)

    @property
    def environment(self) -> SessionEnvironment:
        return self.runtime.environment

    @property
    def store(self) -> Store:
        return self.runtime.store

    async def seed(
        self,
        task: Mapping[str, Any] | Any,
        *,
        owner: str = "",
        seed: int | None = None,
        began: float | None = None,
        session_id: str | None = None,
        replaces: str | None = None,
        by: str | None = None,
        incomplete: bool = False,
        default_state: bool = False,
    ) -> Session[S]:
        """Seed a new session for a task: a row of task data, or a typed task.

        `seed` determines the session's rng and ids, by default at random; `began` is the time at which its clock
        starts, in seconds since 1970, by default now. `session_id` must be unguessable if strangers can call, as the
        default one is. `replaces` names the session that this one replaces, and `by` the person who seeds, for the log.
        With `incomplete`, the row may lack fields that the environment's `seed` does not read; `verify` gets them
        later, with its `row`. With `default_state`, a session whose `seed` reads a missing field starts from the
        defaults of its state's type.
        """
        checked_text("owner", owner)
        if session_id is not None:
            checked_text("session_id", session_id)
        row = self._plain(task)
        if session_id is not None and session_id.startswith(SHARED_IDS):
            raise BadTask(
                f"a session cannot be named {session_id!r}: the prefix is reserved for shared states; choose another id"
            )
        created = self.runtime.now()
        progress = Progress(randbits(63) if seed is None else seed, created if began is None else began)
        if self.environment.state_type is None:
            return self.stateless(session_id or new_session_id(), progress, self._task(row))
        lacks = self.environment.missing_fields(row) if incomplete else []
        if "user" in self.environment.shared_types:
            with contained:
                user = self.environment.user_of(self._task(row, lacks))
            checked_text("user", user)  # else the first call would fail for it
        try:
            state, progress, start = await self._seeded(self._task(row, lacks), progress)
        except AttributeError as error:  # a field of the task, declared or not
            if not default_state or self.environment.world_function is not None:
                if isinstance(error, MissingField):
                    self._task(row)  # which names all that are missing
                raise
            state, start = self._default_state(), None
        head = self.runtime.new_head(owner, session_id=session_id)
        try:
            facts = {"input": row}
            facts |= {name: value for name, value in (("replaces", replaces), ("lacks", lacks), ("by", by)) if value}
            new = new_session(self.runtime.reader, head, state, progress, facts, self.runtime.limits, start)
        except UNSTORABLE as error:
            raise BadTask(f"the task or the seeded state cannot be stored: {error}") from error
        return Session(self.cache.add(await new.create()))

    async def close_unseeded(self, session_id: str) -> None:
        """Close a session before it is seeded: until it expires, this id cannot be seeded.

        The store gets a closed session without a state or an environment. Raises `StoreError` if the session exists.
        """
        runtime = self.runtime
        head = replace(runtime.new_head(session_id=session_id, scope="unseeded"), closed=True)
        await new_session(Reader(self.store, State), head, State(), BEGINNING, {"input": {}}, runtime.limits).create()

    def _plain(self, task: Any) -> Any:
        """A task as JSON data of our own."""
        try:
            with contained:
                return to_jsonable_python(task)
        except UnicodeEncodeError as error:
            raise BadTask("the task is not JSON: a key in it is not valid Unicode") from error
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise BadTask(f"the task is not JSON: {error}") from error

    def _task(self, row: Any, lacks: Sequence[str] = ()) -> Any:
        """The typed task of a row, as a copy that its user may change."""
        parse = self.environment.parse_incomplete_task if lacks else self.environment.parse_task
        return parse(self._plain(row))

    async def _seeded(self, task: Any, progress: Progress) -> tuple[State, Progress, WorldStart | None]:
        """The first state of a session, its progress, and the start that the state follows from, if it does."""
        first, clock = replace(progress, steps=-1), progress.clock()  # the first call has random state of its own
        available = {"task": lambda: task, "rng": first.rng, "clock": lambda: clock, "new_id": first.new_id}
        if self.environment.world_function is None:
            state, start = first_state(self.environment, "seed", await self._run_seed(available)), None
        else:
            state, start = await self._seeded_in_world(available)
        return state, replace(progress, offset=clock.advanced), start

    async def _seeded_in_world(self, available: dict[str, Callable[[], Any]]) -> tuple[State, WorldStart]:
        """A world, with what the task changes in it."""
        world = await self.cache.worlds.current()
        context = DraftContext()
        draft = draft_of(world.state, context)
        try:
            returned = await self._run_seed({**available, "state": lambda: draft})
            if returned is not None:
                raise DefinitionError(
                    f"{self.environment.name} has a world, so seed must change the given `state` and return None, "
                    f"not {type(returned).__name__}"
                )
            with contained:
                state, patch = commit(draft)
        except Exception:
            if has_tampered(draft):
                await self.cache.reload_tampered()
            raise
        finally:
            context.closed = ENDED
        return state, WorldStart(world.id, world.size, patch)

    async def _run_seed(self, available: dict[str, Callable[[], Any]]) -> Any:
        procedure = self.environment.seed_function
        return await self.runtime.run("seed", procedure, {name: available[name]() for name in procedure.needs})

    def _default_state(self) -> State:
        """A state with the defaults of its type; `BadTask` if a field has none."""
        assert self.environment.state_type is not None
        try:
            with contained:
                return first_state(self.environment, "seed", self.environment.state_type())
        except ValidationError as error:
            lacking = ", ".join(str(problem["loc"][0]) for problem in error.errors())
            raise BadTask(f"the state has no default for {lacking}") from None

    async def open(self, session_id: str, *, include_closed: bool = False) -> Session[S]:
        """Open a session that was seeded before, in this or any other process.

        With `include_closed`, you can also open a closed session, to read and fork it.
        """
        cached = self.cache.sessions.get(session_id) if isinstance(session_id, str) else None
        if cached is None:
            read = await self._read(checked_text("session_id", session_id), include_closed)
            cached = self.cache.sessions.get(session_id) or read  # another task may have opened it meanwhile
        else:
            await OpenSession(self.cache, cached).refresh(include_closed=include_closed)
            cached = self.cache.sessions.get(session_id) or cached
        return Session(self.cache.add(cached))

    async def _read(self, session_id: str, include_closed: bool) -> CachedSession:
        """A session, read from the store."""
        if self.environment.state_type is None:
            raise UnknownSession(session_id)
        runtime, history = self.runtime, History(self.store)
        document, first = await asyncio.gather(  # at once, which is one round trip to a store far away
            history.outline(session_id), self.store.entries(session_id, until=1)
        )
        head = document.head
        runtime.ensure_live(head, include_closed)
        if head.environment != self.environment.name:
            raise SessionError(
                session_id,
                f"session {session_id!r} belongs to the environment {head.environment!r}, not "
                f"{self.environment.name!r}",
            )
        cached = CachedSession(runtime.reader, head, runtime.limits)
        cached.load(await runtime.reader.understood(document), document)
        if document.start is not None:
            try:
                await self.cache.worlds.renew(document.start.world)
            except UnknownSession:  # it is in memory here, and nowhere else
                raise world_is_gone(session_id, document.start.world) from None
        cached.seeded = await history.seed(head, first)
        if document.last_kind is None or document.last_kind in AFTER_VERDICT:  # it may have its verdict
            judged = await history.find_own_call(session_id, VERDICT)
            cached.verdict_facts = judged.facts if judged else None
        cached.head = await runtime.renewed(cached.head)
        return cached

    def loaded(self, session_id: str) -> Session[S] | None:
        """The same without waiting, if this process has the session in memory; each use looks for the newest state."""
        cached = self.cache.sessions.get(session_id)
        if cached is None or cached.head.closed:
            return None
        self.cache.sessions.move_to_end(session_id)
        return Session(OpenSession(self.cache, cached))

    def stateless(self, session_id: str, progress: Progress, task: Any = None) -> Session[S]:
        """A session of an environment without a state, which is nothing but what is given here."""
        return StatelessSession(self.cache, session_id, task, progress)  # type: ignore[return-value]

    def forget(self, session_id: str) -> None:
        """Drop a session from memory: the next use reads it from the store."""
        self.cache.drop(session_id)

    async def stop(self) -> None:
        """Stop all resources of this process. Sessions that continue restore theirs, or start them again."""
        await self.cache.stop()

    async def sweep(self) -> int:
        """Remove the expired sessions from the store; returns how many."""
        self.cache.drop_expired()
        return await self.store.sweep(self.runtime.now())
