"""Shared states of sessions: of one user, or of the whole environment.

A shared state is kept as a session of its own, so that it has a log, revisions and a way to be looked at. A call that
changes it changes its session too (that got an entry at least), and a store commits to one session at a time. So that
both happen or neither does:

1. the shared log gets an `intent`: the change, and which revision of which session decides about it;
2. the session's log gets the call at that revision, which decides: from here on the change is made;
3. the shared log gets the change itself, under a call id that says whose it is.

While the last entry of a shared log is an intent, no other process changes that state. A process that finds an intent
that is not followed up, because its writer died, say, looks into the session's log. If the call is there, the change is
entered. If another entry is there, the intent is `dropped`. And if there is none after a while, one that says
`abandoned` takes the call's place: should the call still be under way, it is refused, and runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from math import nextafter
from time import monotonic
from typing import Any, NamedTuple

from stateroom.errors import (
    BadData,
    Conflict,
    DefinitionError,
    DuplicateCall,
    EnvironmentFailed,
    SessionError,
    StateroomError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.lru import LRU
from stateroom.session.cached_session import CachedSession, new_session
from stateroom.session.commit import ATTEMPTS, append_or_retry, back_off, commit
from stateroom.session.containment import contained
from stateroom.session.environment import SessionEnvironment
from stateroom.session.history import History
from stateroom.session.log import LogEntry, checked_text, write_body, write_document
from stateroom.session.progress import Progress
from stateroom.session.reader import Reader, StateAt, typed
from stateroom.session.runtime import Runtime
from stateroom.state import Change, Patch, References, State, apply, digest_of, merge, patched, shape_of
from stateroom.store import Commit, Entry, Head

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""Seconds that a process waits for a call to decide about its intent, before it abandons the intent."""


class SharedConflict(Exception):
    """Another session changed a shared state first, and no rule merges both changes."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.name)
        self.name = shared.name
        self.rejects = shared.cached.state_type.on_conflict == "reject"


class View(NamedTuple):
    """A shared state as a call sees it."""

    shared: Shared
    state: State
    revision: int


class Shared:
    """One shared state, as this process holds it."""

    def __init__(self, runtime: Runtime, name: str, cached: CachedSession, settled: int) -> None:
        self.name = name
        self.cached = cached
        self._runtime = runtime
        self._store = runtime.store
        self._settled = settled
        """A revision at which no intent was open."""
        self._change: tuple[dict[str, Any], Change] | None = None
        """The facts of this process's intent at the end of the log."""

    async def view(self) -> View:
        """The current state."""
        async with self.cached.lock:
            await self._catch_up()
            return View(self, self.cached.state, self.cached.head.revision)

    async def reserve(self, view: View, change: Change, session: str, revision: int) -> int:
        """Announce a change that was made on a view, to be decided by a revision of a session; the intent's revision.

        Raises `SharedConflict` if others have changed the state since and the two changes do not go together.
        """
        cached = self.cached
        facts = {"session": session, "revision": revision}

        async def attempt() -> int:
            await self._catch_up()
            made = change
            if cached.state is not view.state:
                with contained:
                    merged = merge(view.state, change.state, cached.state)
                if merged is None:
                    raise SharedConflict(self)
                made = merged
            after = StateAt(made.state, cached.progress.after(0.0))
            cached.prepare("call", facts, made.patch, after)  # `TooLarge` while it can be refused
            await append_or_retry(cached, cached.prepare("intent", facts, made.patch, decided=True))
            self._change = facts, made
            return cached.head.revision

        return await commit(cached, attempt, "a change")

    async def complete(self) -> None:
        """Commit the announced change, which the session has accepted."""
        assert self._change is not None
        facts, change = self._change
        try:
            await self._enter(facts, change.patch, change.state)
        except (StoreUnavailable, SessionError) as error:  # the next one to come here does it
            self.cached.stale = True
            if not isinstance(error, Conflict | DuplicateCall):
                logger.warning("a change of %s could not be applied yet: %s", self.cached.head.id, error)

    async def drop(self) -> None:
        """Drop the announced change, which the session has rejected."""
        assert self._change is not None
        try:
            await self._drop(self._change[0])
            self._settled = self.cached.head.revision
        except (StoreUnavailable, SessionError):  # the next one to come here does it
            self.cached.stale = True

    # The caller has the lock of the cached session.

    async def _catch_up(self) -> None:
        cached, runtime = self.cached, self._runtime
        head = await self._store.head(cached.head.id)
        if head.created != cached.head.created:  # it was deleted, and made anew
            raise UnknownSession(head.id)
        if cached.stale or cached.state is None or head.revision != cached.head.revision:
            await cached.refresh()
        seen, attempt = monotonic(), 0
        while self._settled != cached.head.revision:
            await self._settle(abandon=monotonic() - seen > GRACE_SECONDS)
            await back_off(attempt)
            attempt += 1
        now = runtime.now()
        if head.expires - now < runtime.limits.shared_ttl / 2:
            await self._store.touch(head.id, now=now, expires=now + runtime.limits.shared_ttl)

    async def _settle(self, *, abandon: bool) -> None:
        """Complete the intent at the end of the log, if there is one and its session has decided."""
        cached = self.cached
        revision = cached.head.revision
        [newest] = await self._store.entries(cached.head.id, after=revision - 1, until=revision)
        last = await History(self._store).read(cached.head.id, newest)
        if last.kind == "intent":
            decided = await self._decided(last, abandon=abandon)
            if decided is None:
                return
            try:
                if decided:
                    await self._enter(last.facts, last.patch, await self._after(last.patch))
                else:
                    await self._drop(last.facts)
            except (Conflict, DuplicateCall):  # somebody else has followed it up
                await cached.refresh()
                return
        self._settled = cached.head.revision

    async def _after(self, patch: Patch) -> State:
        """The state after a change that was announced; by older code, if the state is still as that stored it."""
        cached = self.cached
        if not cached.outdated:
            state: State = patched(cached.state, patch)
            return state
        document = await History(self._store).document(cached.head.id, cached.head.revision)
        apply(document.state, patch)
        return typed(document, cached.state_type)

    async def _decided(self, intent: LogEntry, *, abandon: bool) -> bool | None:
        """Whether the session has accepted an intent; None if it has not decided."""
        session, revision = intent.facts["session"], intent.facts["revision"]
        try:
            head = await self._store.head(session)
            if head.revision < revision and abandon:
                await self._abandon(head, revision)
            entry = await self._entry(session, revision)
        except Conflict:
            return None  # it has decided just now
        except SessionError:  # it has gone, or has ended: it can no longer decide for anything
            return False
        if entry is None:
            if head.revision >= revision:
                raise BadData(
                    f"session {session!r} lacks entry {revision}, which decides a change of {self.cached.head.id!r}"
                )
            return None
        shared = entry.facts.get("shared", {})
        return bool(shared.get(self.name) == [self.cached.head.id, intent.revision])

    async def _entry(self, session: str, revision: int) -> LogEntry | None:
        for entry in await self._store.entries(session, after=revision - 1, until=revision):
            return await History(self._store).read(session, entry)
        return None

    async def _abandon(self, head: Head, revision: int) -> None:
        body = write_body({"by": self.cached.head.id}, []).data
        latest = nextafter(head.expires, 0.0)  # an expired session must not decide any more either
        entry = Entry(revision, "abandoned", min(self._runtime.now(), latest), body)
        await self._store.append(Commit(head.id, entry, expires=None, fence=head.fence))

    async def _enter(self, facts: dict[str, Any], patch: Patch, state: State) -> None:
        after = StateAt(state, self.cached.progress.after(0.0))
        intent = self.cached.head.revision  # a session that is deleted and seeded again may have the same revisions
        call_id = f"{facts['session']}/{facts['revision']}/{intent}"
        await self.cached.append(self.cached.prepare("call", facts, patch, after, call_id, decided=True))
        self._settled = self.cached.head.revision

    async def _drop(self, facts: dict[str, Any]) -> None:
        await self.cached.append(self.cached.prepare("dropped", facts, decided=True))


class SharedStates:
    """The shared states of an environment's runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: LRU[str, Shared] = LRU(runtime.limits.hot)

    async def views(self, cached: CachedSession, names: frozenset[str], user: str | None = None) -> dict[str, View]:
        """The shared states of a session, by name; `user` is by default the task's user."""
        return {name: await self._view(cached, name, user) for name in sorted(names)}

    async def _view(self, cached: CachedSession, name: str, user: str | None) -> View:
        identity, owner = self._identity(cached, name, user)
        for _ in range(ATTEMPTS):
            shared = self._open.get(identity) or await self._find(identity, owner, name, cached)
            self._open.keep(identity, shared)
            try:
                return await shared.view()
            except SessionError:  # it was deleted, or has expired
                self._open.pop(identity, None)
        raise UnknownSession(identity)

    def _identity(self, cached: CachedSession, name: str, user: str | None) -> tuple[str, str]:
        environment = self._runtime.environment
        if name == "app":
            return shared_id("app", environment.name), ""
        if user is None and cached.user is None:
            with contained:
                cached.user = checked_text("user", environment.user_of(self._runtime.task_of(cached.seeded)))
        owner = cached.user if user is None else user
        return shared_id(name, environment.name, str(owner)), str(owner)

    async def _find(self, identity: str, owner: str, name: str, cached: CachedSession) -> Shared:
        """Open a shared state, or make it on its first use."""
        runtime = self._runtime
        try:
            head = await runtime.shared_head(identity)
        except UnknownSession:
            return await self._make(identity, owner, name, cached)
        opened = CachedSession(self._reader(name), head, runtime.shared_limits)
        return Shared(runtime, name, opened, settled=0)

    async def _make(self, identity: str, owner: str, name: str, cached: CachedSession) -> Shared:
        runtime = self._runtime
        head = runtime.new_head(owner, session_id=identity, scope=name, ttl=runtime.limits.shared_ttl)
        state, progress = await self._seeded(name, cached), Progress(0, head.created)
        new = new_session(self._reader(name), head, state, progress, {"input": owner}, runtime.shared_limits)
        made = await new.create_once()
        return Shared(runtime, name, made, settled=1) if made else await self._find(identity, owner, name, cached)

    def _reader(self, name: str) -> Reader:
        return Reader(self._runtime.store, self._runtime.environment.shared_types[name])

    async def _seeded(self, name: str, cached: CachedSession) -> State:
        runtime = self._runtime
        procedure = runtime.environment.shared_seed_functions[name]
        arguments = {"task": runtime.task_of(cached.seeded)} if "task" in procedure.needs else {}
        where = f"{runtime.environment.name}.seed_{name}"
        try:
            state = await runtime.run(f"seed_{name}", procedure, arguments)
        except StateroomError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{where} failed: unexpected {type(error).__name__}") from error
        wanted = runtime.environment.shared_types[name]
        if type(state) is not wanted:
            raise DefinitionError(f"{where} must return a {wanted.__name__}, not {type(state).__name__}")
        with contained:
            copy: State = shape_of(wanted).validate_copy(state, ())  # valid, and shared with nobody
            return copy

    async def commit(
        self,
        cached: CachedSession,
        revision: int,
        views: Mapping[str, View],
        changes: Mapping[str, Change],
        decide: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Commit a call that changed shared states too; `decide` commits it to its session, with these facts."""
        async with AsyncExitStack() as locks:
            for name in sorted(changes):
                await locks.enter_async_context(views[name].shared.cached.lock)
            reserved: dict[str, Any] = {}
            try:
                for name in sorted(changes):
                    shared = views[name].shared
                    at = await shared.reserve(views[name], changes[name], cached.head.id, revision)
                    reserved[name] = [shared.cached.head.id, at]
                await decide({"shared": reserved} if reserved else {})
            except StoreUnavailable:
                raise  # whether it was committed is in the log, for the next process
            except Exception:
                for name in reserved:
                    await views[name].shared.drop()
                raise
            for name in reserved:
                await views[name].shared.complete()

    def forget(self) -> None:
        """Drop all shared states from memory: the next use reads them from the store."""
        self._open.clear()


def shared_id(*parts: str) -> str:
    """The id under which a shared state is kept."""
    return ":".join(parts)


# Worlds: a state that many sessions start from, made once by a process and stored once in a store. A world is kept as a
# session of its own, whose id follows from its content. The first snapshot of a session that starts from it says which
# it is and what the task changed in it, and so is small, however large the world. In memory the sessions share all of
# it that they have not changed.

BEGINNING = Progress(0, 0.0)
"""The progress of every world, so that the id of a world follows from its state alone."""

KEPT_SECONDS = 365 * 24 * 3600.0
"""Seconds that a world outlives the sessions that were seeded or opened last: their calls do not renew it."""


def is_world(session: str) -> bool:
    """Whether this is the id of a world, which determines the world's content."""
    return session.startswith(shared_id("world", ""))


class World(NamedTuple):
    """A world in memory."""

    id: str
    state: State
    size: int
    """Its stored size in bytes."""


class Worlds:
    """The world of an environment, as its new sessions need it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: World | None = None
        self._making = asyncio.Lock()

    async def current(self) -> World:
        """The world that new sessions start from, stored for as long as they live."""
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
        """Renew the expiry of a world for its sessions; raises `UnknownSession` if it is gone."""
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
    """The state that `seed` or `world` returned, as a valid private copy.

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
            missing = f"{environment.name}.{hook} returns a {given.__name__} without {', '.join(lacking)}"
            raise DefinitionError(f"{missing}; write a {hook} that returns a {wanted.__name__}, or add defaults")
        state = wanted.model_construct(**fields)
    with contained:
        copy: State = shape_of(wanted).validate_copy(state, ())
        return copy
