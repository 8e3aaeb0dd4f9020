"""Worlds: a state that many sessions start from, made once by a process and stored once in a store.

A world is kept as a session of its own, whose id follows from its content. The first snapshot of a session that starts
from it says which it is and what the task changed in it, and so is small, however large the world. In memory the
sessions share all of it that they have not changed.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from stateroom.errors import DefinitionError, StoreError, StoreUnavailable, TimedOut, UnknownSession
from stateroom.session.cached_session import new_session
from stateroom.session.containment import contained
from stateroom.session.document import write_document
from stateroom.session.progress import Progress
from stateroom.session.runtime import Runtime
from stateroom.session.shared import shared_environment, shared_id
from stateroom.state import References, State, digest_of, shape_of
from stateroom.store import Head

BEGINNING = Progress(0, 0.0)
"""The progress of every world, so that the id of a world follows from its state alone."""

KEPT = 365 * 24 * 3600.0
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
        try:
            await self.renew(self._made.id)
        except UnknownSession:
            await self._store(self._made)
        return self._made

    async def renew(self, world: str) -> None:
        """Let a world go on living, for as long as sessions that start from it may; `UnknownSession` if it is gone."""
        runtime, store = self._runtime, self._runtime.store
        now = runtime.now()
        head = await store.head(world)
        if head.expires <= now:
            await store.sweep(now)  # not `delete`: another may have made it anew just now
            raise UnknownSession(world)
        if head.expires < now + runtime.ttl + KEPT / 2:
            await store.touch(world, now=now, expires=self._expiry(now))

    def forget(self) -> None:
        """Drop the cached world: it is made again when it is needed."""
        self._made = None

    async def _make(self) -> World:
        runtime = self._runtime
        environment, wanted = runtime.environment, runtime.environment.state_type
        assert environment.world_function is not None
        assert wanted is not None
        try:
            state = await runtime.runner.run(environment.world_function, {}, runtime.timeout)
        except TimedOut as error:
            raise TimedOut(f"{environment.name}.world did not finish within {error}") from None
        if type(state) is not wanted:
            raise DefinitionError(
                f"{environment.name}.world must return a {wanted.__name__}, not {type(state).__name__}"
            )
        with contained:
            copy: State = shape_of(wanted).admit(state, ())  # valid, and shared with nobody
        references = References(runtime.store.large)
        body = write_document(copy, BEGINNING, references)
        identity = shared_id("world", environment.name, digest_of(body))
        runtime.reader.keep(identity, copy)
        return World(identity, copy, len(body) + references.size)

    async def _store(self, world: World) -> None:
        runtime = self._runtime
        now, environment = runtime.now(), runtime.environment.name
        head = Head(
            world.id, shared_environment("world", environment), "", now, self._expiry(now), 1, fence=int(now * 1e6)
        )
        _, entries, snapshot, blobs = new_session(
            runtime.reader, head, world.state, BEGINNING, {"input": {}}, runtime.shared_limits
        )
        try:
            await runtime.store.create(head, entries, snapshot, blobs)
        except StoreUnavailable:
            raise
        except StoreError:  # another process was quicker
            await runtime.store.head(world.id)

    def _expiry(self, now: float) -> float:
        return now + self._runtime.ttl + KEPT
