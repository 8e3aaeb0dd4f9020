"""The open sessions of a process: which are kept in memory, and what each use of one begins with."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain

from msgspec.structs import replace

from stateroom.errors import SessionClosed, SessionError, SessionExpired, UnknownSession
from stateroom.session.cached_session import CachedSession
from stateroom.session.resources import ResourceManager, SessionResources
from stateroom.session.runtime import Runtime
from stateroom.session.shared import SharedStates
from stateroom.session.world import Worlds
from stateroom.store import Head


class SessionCache:
    """The `most` sessions that were used last, with what they share: user and app states, worlds, resources."""

    def __init__(self, runtime: Runtime, most: int) -> None:
        self.runtime = runtime
        self.most = most
        self.shared = SharedStates(runtime, most)
        self.worlds = Worlds(runtime)
        self.resources = ResourceManager(
            runtime.environment.resources, runtime.store, runtime.runner, runtime.timeout, runtime.max_state
        )
        self.reaches_outside = self.resources.restarts or any(
            tool.effect == "external" for tool in runtime.environment.tools.values()
        )
        """Whether a call may have effects that no store knows of."""
        self.sessions: OrderedDict[str, CachedSession] = OrderedDict()
        """By id, the one used last at the end."""

    def add(self, cached: CachedSession) -> CachedSession:
        """Keep a session in memory, as the one that was used last; another may be dropped for it."""
        self.sessions[cached.head.id] = cached
        self.sessions.move_to_end(cached.head.id)
        if len(self.sessions) > self.most:
            self.drop(self._least_missed(cached))
        return cached

    def drop(self, session_id: str) -> None:
        """Keep nothing of a session in memory: the next use reads it from the store."""
        cached = self.sessions.pop(session_id, None)
        if cached is not None and cached.resources:
            self.resources.own(self._stop_resources(cached))

    def drop_expired(self) -> None:
        now = self.runtime.now()
        for session_id in [each.head.id for each in self.sessions.values() if each.head.expires <= now]:
            self.drop(session_id)
        self.sessions = OrderedDict(self.sessions)  # a dict that has been large stays so; its copy does not

    async def stop(self) -> None:
        """Drop all sessions, and stop all resources of this process."""
        for session_id in [*self.sessions]:
            self.drop(session_id)
        await self.resources.stop()

    async def look(self, cached: CachedSession, *, include_closed: bool = True) -> Head:
        """The newest head of a session that may be used, and whose life is renewed; its state stays as it is here."""
        fresh = cached.is_fresh and cached.head.expires > self.runtime.now()  # others may have renewed it
        head = cached.head if fresh else await self.runtime.store.head(cached.head.id)
        if head.created != cached.head.created:  # it was deleted, and another one seeded that has its id
            self.drop(head.id)
            raise UnknownSession(head.id)
        self.ensure_live(head, include_closed)
        return await self.renewed(head)

    async def refresh(self, cached: CachedSession, *, include_closed: bool = False, load_state: bool = True) -> None:
        """Bring a session up to date, if it may be used, and renew its life.

        Its newest state is loaded then, if `load_state`; without, the caller has the session's lock.
        """
        head = await self.look(cached, include_closed=include_closed)
        if (cached.state is None and load_state) or head.revision != cached.head.revision:
            await cached.refresh(load_state=load_state)
        else:
            cached.head = head  # its lease may be news
        # Nothing is awaited after this: until the caller does, the state is loaded.

    def ensure_live(self, head: Head, include_closed: bool) -> None:
        """Raise if a session has expired, or is closed."""
        if head.expires <= self.runtime.now():
            raise SessionExpired(head.id)
        if head.closed and not include_closed:
            raise SessionClosed(head.id)

    async def renewed(self, head: Head) -> Head:
        """The head of a session whose life is renewed, because it is used."""
        now = self.runtime.now()
        if head.closed or head.expires - now > self.runtime.renew_below:
            return head
        expires = now + self.runtime.ttl
        await self.runtime.store.touch(head.id, now=now, expires=expires)
        return replace(head, expires=expires)

    def resources_of(self, cached: CachedSession) -> SessionResources:
        """The resources that this process has for a session, for as long as it keeps the session in memory."""
        if cached.resources is None:
            cached.resources = SessionResources(self.resources)
        self.add(self.sessions.get(cached.head.id, cached))
        if self.sessions.get(cached.head.id) is not cached:
            self.resources.own(self._stop_resources(cached))
        return cached.resources

    async def _stop_resources(self, cached: CachedSession) -> None:
        """Stop a session's resources as soon as nobody uses them, unless the session is in memory again."""
        async with cached.lock:
            if cached.resources and self.sessions.get(cached.head.id) is not cached:
                await cached.resources.stop()

    async def reload_tampered(self, *tampered: CachedSession) -> None:
        """Read again what an author's code may have tampered with: these, and all that share states with others."""
        forks = [other.head for other in self.sessions.values() if other.head.parent is not None]
        related = {*(each.head.id for each in tampered), *(head.id for head in forks), *(head.parent for head in forks)}
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
