"""Worlds: a state that many sessions start from, made once by a process and stored once in a store.

A world is kept as a session of its own, whose id follows from its content. The first snapshot of a session that starts
from it says which it is and what the task changed in it, and so is small, however large the world. In memory the
sessions share all of it that they have not changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from stateroom.errors import DefinitionError, UnknownSession
from stateroom.session.cached_session import new_session
from stateroom.session.containment import contained
from stateroom.session.document import write_document
from stateroom.session.environment import SessionEnvironment
from stateroom.session.progress import Progress
from stateroom.session.runtime import Runtime
from stateroom.session.shared import shared_id
from stateroom.state import References, State, digest_of, shape_of

BEGINNING = Progress(0, 0.0)
"""The progress of every world, so that the id of a world follows from its state alone."""

KEPT_SECONDS = 365 * 24 * 3600.0
"""Seconds that a world outlives the sessions that were seeded or opened last: their calls do not renew it."""


def is_world(session: str) -> bool:
    """Whether this is the id of a world: then it says all that the world is."""
    return session.startswith(shared_id("world", ""))


class World(NamedTuple):
    """A world in memory."""

    id: str
    state: State
    size: int
    """How many bytes it has as it is stored."""


class Worlds:
    """The world of an environment, as its new sessions need it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: World | None = None
        self._making = asyncio.Lock()

    async def current(self) -> World:
        """The world that new sessions start from. The store has it, and keeps it for as long as they live."""
        async with self._making:
            if self._made is None:
                self._made = await self._make()
        made = self._made
        try:
            await self.renew(made.id)
        except UnknownSession:
            async with self._making:
                await self._store_once(made)
        return made

    async def renew(self, world: str) -> None:
        """Let a world go on living, for as long as sessions that start from it may; `UnknownSession` if it is gone."""
        runtime = self._runtime
        head, now = await runtime.shared_head(world), runtime.now()
        if head.expires < now + runtime.limits.ttl + KEPT_SECONDS / 2:
            await runtime.store.touch(world, now=now, expires=now + runtime.limits.ttl + KEPT_SECONDS)

    def forget(self) -> None:
        """Drop the cached world: it is made again when it is needed."""
        self._made = None

    async def _make(self) -> World:
        runtime = self._runtime
        environment = runtime.environment
        assert environment.world_function is not None
        copy = first_state(environment, "world", await runtime.run("world", environment.world_function, {}))
        references = References(runtime.store.large)
        body = write_document(copy, BEGINNING, references)
        identity = shared_id("world", environment.name, digest_of(body))
        runtime.reader.keep(identity, copy)
        return World(identity, copy, len(body) + references.size)

    async def _store_once(self, world: World) -> None:
        """Store a world, unless another task has done so meanwhile."""
        try:
            await self.renew(world.id)
        except UnknownSession:
            await self._store(world)

    async def _store(self, world: World) -> None:
        runtime = self._runtime
        head = runtime.new_head(session_id=world.id, scope="world", ttl=runtime.limits.ttl + KEPT_SECONDS)
        new = new_session(runtime.reader, head, world.state, BEGINNING, {"input": {}}, runtime.shared_limits)
        if await new.create_once() is None:
            await runtime.store.head(world.id)  # which raises if it has gone again


def first_state(environment: SessionEnvironment, hook: str, state: Any) -> State:
    """What `seed` or `world` returned, as a valid copy that nobody else has.

    If a base class of the environment made it, in a base class of its state, the fields that are new have defaults.
    """
    wanted, given = environment.state_type, type(state)
    known = {wanted, *wanted.__mro__[: wanted.__mro__.index(State)]} if wanted else ()
    if wanted is None or given not in known:  # a subclass could not be read back
        name = wanted.__name__ if wanted else None
        raise DefinitionError(f"{environment.name}.{hook} must return a {name}, not {given.__name__}")
    if given is not wanted:
        fields = {name: getattr(state, name) for name in given.model_fields}
        if lacking := [
            name for name, field in wanted.model_fields.items() if field.is_required() and name not in fields
        ]:
            missing = f"{environment.name}.{hook} returns a {given.__name__}, which has no {', '.join(lacking)}"
            raise DefinitionError(f"{missing}; write a {hook} that returns a {wanted.__name__}, or give a default")
        state = wanted.model_construct(**fields)
    with contained:
        copy: State = shape_of(wanted).validate_copy(state, ())
        return copy
