"""The open sessions of a process: keeping them in memory, and refreshing them on each use."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Any

from stateroom.errors import SessionError, UnknownSession
from stateroom.session.cached_session import CachedSession
from stateroom.session.resources import ResourceManager, SessionResources
from stateroom.session.runtime import Runtime
from stateroom.session.shared import SharedStates, View, Worlds
from stateroom.store import Head


class OpenSession:
    """A session in use by this process: its cached data, and the data that it shares with other sessions."""

    def __init__(self, cache: SessionCache, cached: CachedSession) -> None:
        self.cache = cache
        self.cached = cached
        self.runtime = cache.runtime
        self.environment = cache.runtime.environment

    @property
    def id(self) -> str:
        return self.cached.head.id

    def task(self) -> Any:
        """The typed task that the session was seeded with, read anew each time."""
        return self.runtime.task_of(self.cached.seeded, self.cached.verdict_facts)

    async def look(self, *, include_closed: bool = True) -> Head:
        """Return the newest head of a usable session, and renew its expiry; does not load the state."""
        cached, runtime = self.cached, self.runtime
        fresh = cached.is_fresh and cached.head.expires > runtime.now()  # others may have renewed it
        head = cached.head if fresh else await runtime.store.head(cached.head.id)
        if head.created != cached.head.created:  # it was deleted, and another one seeded that has its id
            self.cache.drop(head.id)
            raise UnknownSession(head.id)
        runtime.ensure_live(head, include_closed)
        return await runtime.renewed(head)

    async def refresh(self, *, include_closed: bool = False, load_state: bool = True) -> None:
        """Bring a usable session up to date, and renew its expiry.

        Its newest state is loaded then, if `load_state`; without, the caller has the session's lock.
        """
        head, cached = await self.look(include_closed=include_closed), self.cached
        if (cached.state is None and load_state) or head.revision != cached.head.revision:
            await cached.refresh(load_state=load_state)
        else:
            cached.head = head  # its lease may be news
        # Nothing is awaited after this: until the caller does, the state is loaded.

    @property
    def seems_over(self) -> bool:
        """Whether the session is closed, has expired or has its verdict, as far as this process knows."""
        cached = self.cached
        return cached.head.closed or cached.verdict_facts is not None or cached.head.expires <= self.runtime.now()

    async def ensure_changeable(self) -> None:
        """Raise if the session has ended; another process may have renewed its expiry."""
        await self.refresh()
        self.cached.ensure_unsealed()

    async def views(self, names: frozenset[str], user: str | None = None) -> dict[str, View]:
        """The shared states of the session, by name; `user` is by default the task's user."""
        return await self.cache.shared.views(self.cached, names, user)

    def resources(self) -> SessionResources:
        """The resources that this process has for the session, for as long as it keeps the session in memory."""
        return self.cache.resources_of(self.cached)

    async def reload_tampered(self) -> None:
        """Reload the data that an author's code may have tampered with."""
        await self.cache.reload_tampered(self.cached)


class SessionCache:
    """The sessions that were used last, with what they share: user and app states, worlds, resources."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.shared = SharedStates(runtime)
        self.worlds = Worlds(runtime)
        environment, limits = runtime.environment, runtime.limits
        self.resources = ResourceManager(environment.resources, runtime.store, runtime.runner, limits.max_state)
        external = any(tool.effect == "external" for tool in environment.tools.values())
        self.reaches_outside = self.resources.restarts or external
        """Whether a call may have effects outside the store."""
        self.sessions: OrderedDict[str, CachedSession] = OrderedDict()
        """The sessions by id, in the order of their last use."""

    def add(self, cached: CachedSession) -> OpenSession:
        """Keep a session in memory, as the most recently used; another may be dropped for it."""
        self.sessions[cached.head.id] = cached
        self.sessions.move_to_end(cached.head.id)
        if len(self.sessions) > self.runtime.limits.hot:
            self.drop(self._least_missed(cached))
        return OpenSession(self, cached)

    def drop(self, session_id: str) -> None:
        """Drop a session from memory: the next use reads it from the store."""
        cached = self.sessions.pop(session_id, None)
        if cached is not None and cached.resources:
            self.resources.own(self._stop_resources(cached))

    def drop_expired(self) -> None:
        now = self.runtime.now()
        for session_id in [cached.head.id for cached in self.sessions.values() if cached.head.expires <= now]:
            self.drop(session_id)
        self.sessions = OrderedDict(self.sessions)  # a dict that has been large stays so; its copy does not

    async def stop(self) -> None:
        """Drop all sessions, and stop all resources of this process."""
        for session_id in [*self.sessions]:
            self.drop(session_id)
        await self.resources.stop()

    def resources_of(self, cached: CachedSession) -> SessionResources:
        """The resources that this process has for a session, which is kept in memory for them."""
        if cached.resources is None:
            cached.resources = SessionResources(self.resources)
        self.add(self.sessions.get(cached.head.id, cached))
        if self.sessions.get(cached.head.id) is not cached:
            self.resources.own(self._stop_resources(cached))
        return cached.resources

    async def _stop_resources(self, cached: CachedSession) -> None:
        """Stop a session's resources when they are not in use, unless the session is in memory again."""
        async with cached.lock:
            if cached.resources and self.sessions.get(cached.head.id) is not cached:
                await cached.resources.stop()

    async def reload_tampered(self, *tampered: CachedSession) -> None:
        """Reload the data that an author's code may have tampered with: these sessions, and all that share states."""
        forks = [other.head for other in self.sessions.values() if other.head.parent is not None]
        related = {*(one.head.id for one in tampered), *(head.id for head in forks), *(head.parent for head in forks)}
        if self.runtime.environment.world_function is not None:  # all may share the world
            related = {*self.sessions}
            self.worlds.forget()
            self.runtime.reader.forget()
        spoiled = {*tampered, *(other for other in self.sessions.values() if other.head.id in related)}
        self.shared.forget()
        for other in spoiled:  # all at once, before anybody can use one
            other.forget()
        for other in spoiled:
            try:
                await other.refresh()
            except SessionError:  # it has expired, or was swept
                self.drop(other.head.id)

    def _least_missed(self, newest: CachedSession) -> str:
        """The session to drop for a new one: the oldest without a lease; before all others, one without resources."""
        free = (other for other in self.sessions.values() if other.lease is None and other is not newest)
        first = next(free, newest)
        return next((other for other in chain((first,), free) if not other.resources), first).head.id
