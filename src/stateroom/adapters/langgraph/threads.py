"""The threads of a store; each is a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from stateroom.adapters.langgraph.thread import GraphThread, ThreadChange
from stateroom.errors import (
    Conflict,
    SessionClosed,
    SessionExpired,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.lru import LRU
from stateroom.session import (
    ATTEMPTS,
    CachedSession,
    PreparedCommit,
    Progress,
    Reader,
    SessionLimits,
    StateAt,
    back_off,
    new_session,
    weight_of_snapshot,
    write_document,
)
from stateroom.state import References
from stateroom.store import Head, HeadFilter, Record, Snapshot, Store

ENVIRONMENT = "langgraph"
PREFIX = f"{ENVIRONMENT}:"

NEVER_EXPIRES = 250_000_000_000.0
"""The expiry of threads that do not expire: a time that every store and calendar can represent."""

Edit = Callable[[CachedSession, ThreadChange], Awaitable[None]]
"""Changes a thread. It runs again after a conflict."""


class GraphThreads:
    """Finds, creates and changes threads, and caches the most recently used."""

    def __init__(self, store: Store, ttl: float | None, hot: int, now: Callable[[], float]) -> None:
        self.store = store
        self.ttl = ttl
        self.now = now
        self._limits = SessionLimits(ttl=ttl or 0, max_log=1 << 62, now=now)
        self._cached: LRU[str, CachedSession] = LRU(hot)
        self._reader = Reader(store, GraphThread)

    async def find(self, thread: str) -> CachedSession | None:
        """A thread at its newest revision; None if it does not exist."""
        session = PREFIX + thread
        cached = self._cached.get(session)
        try:
            if cached is not None:
                async with cached.lock:
                    await self._catch_up(cached)
        except UnknownSession:  # deleted, and perhaps created again
            self._cached.pop(session, None)
            cached = None
        cached = cached or await self._opened(session)
        if cached is None:
            return None
        self._keep(cached)
        return cached if cached.head.status(self.now()) == "live" else None

    async def every(self) -> AsyncIterator[str]:
        """All threads, newest first."""
        async for page in self.store.pages(HeadFilter(environment=ENVIRONMENT, status="live", at=self.now())):
            for head in page:
                yield head.id.removeprefix(PREFIX)

    async def change(
        self, thread: str, facts: dict[str, Any], edit: Edit, *, with_snapshot: bool = False
    ) -> CachedSession:
        """Change a thread, creating it if needed; with `with_snapshot`, the earlier log can be pruned."""
        session = PREFIX + thread
        for attempt in range(ATTEMPTS):
            await back_off(attempt)
            cached = self._cached.get(session) or await self._found_or_made(session)
            self._keep(cached)
            async with cached.lock:
                try:
                    if cached.stale:
                        await self._catch_up(cached)
                    step = await self._step(cached, facts, edit)
                    if step is not None:
                        await cached.append(self._with_snapshot(step) if with_snapshot else step)
                        return cached
                    revision = cached.head.revision
                    await self._catch_up(cached)  # the store refuses a stale change, but not a missing one
                    if cached.head.revision == revision:
                        return cached
                except Conflict:
                    continue
                except (SessionExpired, SessionClosed, UnknownSession):  # deleted, and perhaps created again
                    self._cached.pop(session, None)
        why = f"thread {thread!r} is too busy: {ATTEMPTS} attempts failed with a conflict"
        raise Conflict(session, cached.head.revision, why)

    async def copy(self, source: str, target: str) -> None:
        """Create a thread as a fork of another."""
        cached = await self.find(source)
        if cached is None:
            raise UnknownSession(PREFIX + source)
        head = self._new_head(PREFIX + target, cached.head.revision, cached.head.id)
        await self._sweep_expired(head.id)
        await self.store.create(head)

    async def delete(self, thread: str) -> None:
        """Delete a thread; its copies keep what they share with it."""
        self._cached.pop(PREFIX + thread, None)
        with suppress(UnknownSession):
            await self.store.delete(PREFIX + thread)

    async def prune(self, cached: CachedSession) -> None:
        """Prune the log before the oldest checkpoint, unless the thread has copies that read it."""
        if await self.store.children(cached.head.id):
            return
        head = cached.head
        revisions = (saved.at for some in cached.state.saved.values() for saved in some.values())
        needed = min(revisions, default=head.revision)
        snapshot = (await self.store.load(head.id, needed)).snapshot if needed > head.parent_revision else None
        if snapshot is not None:
            await self.store.prune(head.id, snapshot.revision)

    # Cached sessions.

    async def _opened(self, session: str) -> CachedSession | None:
        """Read a session from the store; None if it does not exist."""
        try:
            standing, document = await self._reader.read(session)
        except UnknownSession as error:
            if error.session != session:  # the original of the copy is missing, which is an error
                raise
            return None
        cached = CachedSession(self._reader, document.head, self._limits)
        cached.load(standing, document)
        return cached

    async def _catch_up(self, cached: CachedSession) -> None:
        head = await self.store.head(cached.head.id)
        if head.created != cached.head.created:  # deleted, and created again with the same id
            raise UnknownSession(head.id)
        if cached.stale or head.revision != cached.head.revision:
            await cached.refresh()
        else:
            cached.head = head

    async def _found_or_made(self, session: str) -> CachedSession:
        cached = await self._opened(session)
        if cached is not None:
            if cached.head.status(self.now()) == "live":
                return cached
            await self._sweep_expired(session)
        return await self._made(session)

    async def _made(self, session: str) -> CachedSession:
        head = self._new_head(session, 1)
        facts = {"input": {"thread_id": session.removeprefix(PREFIX)}}
        beginning = Progress(0, head.created)
        cached, entries, snapshot, blobs = new_session(
            self._reader, head, GraphThread(), beginning, facts, self._limits
        )
        try:
            await self.store.create(head, entries, snapshot, blobs)
        except StoreUnavailable:
            raise
        except StoreError:  # another process was first, or copies still need the deleted one
            existing = await self._opened(session)
            if existing is None:
                raise
            if existing.head.status(self.now()) != "live":
                await self._begin_again(existing)
            return existing
        return cached

    def _new_head(self, session: str, revision: int, parent: str | None = None) -> Head:
        now = self.now()
        return Head(
            id=session,
            environment=ENVIRONMENT,
            owner="",
            created=now,
            expires=NEVER_EXPIRES if self.ttl is None else now + self.ttl,
            revision=revision,
            parent=parent,
            parent_revision=revision if parent else 0,
            fence=int(now * 1e6),  # differs for a thread that is deleted and created again
        )

    async def _sweep_expired(self, session: str) -> None:
        """Remove an expired thread, so a new one can have its id."""
        with suppress(UnknownSession):
            if (await self.store.head(session)).status(self.now()) != "live":
                # Not `delete`, because another process may have just created it again.
                await self.store.sweep(self.now())

    async def _begin_again(self, cached: CachedSession) -> None:
        """Clear a deleted thread that stays for its copies."""

        async def clear(_: CachedSession, change: ThreadChange) -> None:
            for field in GraphThread.model_fields:
                change.set(field, value={})

        step = await self._step(cached, {"name": "begin_again", "input": {}}, clear)
        assert step is not None
        commit = self._with_snapshot(step).commit
        assert commit.snapshot is not None
        fresh = self._new_head(cached.head.id, commit.entry.revision)
        head = replace(cached.head, revision=fresh.revision, expires=fresh.expires, fence=fresh.fence, closed=False)
        with suppress(StoreError):  # another process was first
            await self.store.put(Record(head, [commit.entry], [commit.snapshot], {}))
        cached.forget()

    def _keep(self, cached: CachedSession) -> CachedSession:
        return self._cached.keep(cached.head.id, cached)

    # Steps.

    async def _step(self, cached: CachedSession, facts: dict[str, Any], edit: Edit) -> PreparedCommit | None:
        """The step of an edit; None if it changes nothing."""
        change = ThreadChange(cached.state)
        await edit(cached, change)
        if not change.patch:
            return None
        after = StateAt(change.thread, cached.progress.after(0.0))
        return cached.prepare("call", facts, change.patch, after)

    def _with_snapshot(self, step: PreparedCommit) -> PreparedCommit:
        commit = step.commit
        if commit.snapshot is not None:
            return step
        references = References(self.store.large)
        body = write_document(step.after.state, step.after.progress, references)
        weight = weight_of_snapshot(len(body), references.size)
        snapshot, blobs = Snapshot(commit.entry.revision, body), {**commit.blobs, **references.blobs}
        return replace(step, commit=replace(commit, snapshot=snapshot, blobs=blobs), weight=weight)
