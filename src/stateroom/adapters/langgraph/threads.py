"""The threads of a store: each is a session, read and changed as sessions are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from stateroom.adapters.langgraph.change import Change
from stateroom.adapters.langgraph.thread import Thread
from stateroom.errors import (
    Conflict,
    SessionClosed,
    SessionExpired,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.lru import LRU
from stateroom.session.cached_session import CachedSession, Step, new_session
from stateroom.session.commit import ATTEMPTS, back_off
from stateroom.session.document import Weight, write_document
from stateroom.session.maintenance import every_head
from stateroom.session.progress import Progress
from stateroom.session.reader import Reader, StateAt
from stateroom.state import Elsewhere
from stateroom.store import Head, Record, Snapshot, Store

ENVIRONMENT = "langgraph"
PREFIX = f"{ENVIRONMENT}:"

NEVER = 250_000_000_000.0
"""When a thread expires that lives for ever: a time that every store and every calendar can hold."""

RENEWED = 0.99
"""An expiry that is this share of the time to live away need not be renewed."""

MAX_BYTES = 1 << 30

Edit = Callable[[CachedSession, Change], Awaitable[None]]
"""Makes a change of the thread in a room. It is carried out again if others come first."""


class Threads:
    """Finds, makes and changes threads, and keeps those used last at hand."""

    def __init__(self, store: Store, ttl: float | None, hot: int, now: Callable[[], float]) -> None:
        self.store = store
        self.ttl = ttl
        self.hot = hot
        self.now = now
        self._cached: LRU[str, CachedSession] = LRU(hot)
        self._reader = Reader(store, Thread)

    async def find(self, thread: str) -> CachedSession | None:
        """A thread as it is now; None if there is none."""
        session = PREFIX + thread
        cached = self._cached.get(session)
        try:
            if cached is not None:
                async with cached.lock:
                    await self._catch_up(cached)
        except UnknownSession:  # deleted, and perhaps made anew
            self._cached.pop(session, None)
            cached = None
        try:
            cached = cached or self._keep(await self._opened(session))
        except UnknownSession as error:
            if error.session != session:  # what it was copied from is gone, which must not be
                raise
            return None
        return cached if cached.head.status(self.now()) == "live" else None

    async def every(self) -> AsyncIterator[str]:
        """All threads, the newest first."""
        async for page in every_head(self.store, ENVIRONMENT):
            for head in page:
                if head.status(self.now()) == "live":
                    yield head.id.removeprefix(PREFIX)

    async def change(self, thread: str, facts: dict[str, Any], edit: Edit, *, whole: bool = False) -> CachedSession:
        """Change a thread, which is made if there is none; with `whole`, the log can be cut off before the change."""
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
                        await cached.append(self._with_snapshot(step) if whole else step)
                        return cached
                    revision = cached.head.revision
                    await self._catch_up(cached)  # the store would refuse a stale change, but is not asked for none
                    if cached.head.revision == revision:
                        return cached
                except Conflict:
                    continue
                except (SessionExpired, SessionClosed, UnknownSession):  # deleted, and perhaps made anew
                    self._cached.pop(session, None)
        raise Conflict(session, cached.head.revision, f"thread {thread!r} is too busy: others always come first")

    async def copy(self, source: str, target: str) -> None:
        """Make a thread that begins with all that another has."""
        cached = await self.find(source)
        if cached is None:
            raise UnknownSession(PREFIX + source)
        head = self._new_head(PREFIX + target, cached.head.revision, cached.head.id)
        await self._sweep_expired(head.id)
        await self.store.create(head)

    async def delete(self, thread: str) -> None:
        """Remove a thread; what copies of it still need stays for them alone."""
        self._cached.pop(PREFIX + thread, None)
        with suppress(UnknownSession):
            await self.store.delete(PREFIX + thread)

    async def forget_past(self, cached: CachedSession) -> None:
        """Cut off the log before the oldest checkpoint that there is, unless copies of the thread read it."""
        if await self.store.children(cached.head.id):
            return
        head = cached.head
        found = (saved.at for some in cached.state.saved.values() for saved in some.values())
        needed = min(found, default=head.revision)
        snapshot = (await self.store.load(head.id, needed)).snapshot if needed > head.parent_revision else None
        if snapshot is not None:
            await self.store.prune(head.id, snapshot.revision)

    # Rooms.

    async def _opened(self, session: str) -> CachedSession:
        standing, document = await self._reader.read(session)
        cached = CachedSession(self._reader, document.head, MAX_BYTES)
        cached.load(standing, document)
        return cached

    async def _catch_up(self, cached: CachedSession) -> None:
        head = await self.store.head(cached.head.id)
        if head.created != cached.head.created:  # it was deleted, and another one made that has its id
            raise UnknownSession(head.id)
        if cached.stale or head.revision != cached.head.revision:
            await cached.refresh()
        else:
            cached.head = head

    async def _found_or_made(self, session: str) -> CachedSession:
        try:
            cached = await self._opened(session)
        except UnknownSession as error:
            if error.session != session:
                raise
            return await self._made(session)
        if cached.head.status(self.now()) == "live":
            return cached
        await self._sweep_expired(session)
        return await self._made(session)

    async def _made(self, session: str) -> CachedSession:
        head = self._new_head(session, 1)
        facts = {"input": {"thread_id": session.removeprefix(PREFIX)}}
        beginning = Progress(0, head.created)
        cached, entries, snapshot, blobs = new_session(self._reader, head, Thread(), beginning, facts, MAX_BYTES)
        try:
            await self.store.create(head, entries, snapshot, blobs)
        except StoreUnavailable:
            raise
        except StoreError:  # another process was quicker, or copies still read the one that was deleted
            cached = await self._opened(session)
            if cached.head.status(self.now()) != "live":
                await self._begin_again(cached)
        return cached

    def _new_head(self, session: str, revision: int, parent: str | None = None) -> Head:
        now = self.now()
        return Head(
            id=session,
            environment=ENVIRONMENT,
            owner="",
            created=now,
            expires=NEVER if self.ttl is None else now + self.ttl,
            revision=revision,
            parent=parent,
            parent_revision=revision if parent else 0,
            fence=int(now * 1e6),  # of a thread that is deleted and made again under its name: another one
        )

    async def _sweep_expired(self, session: str) -> None:
        """Make room for a new thread where one has expired."""
        with suppress(UnknownSession):
            if (await self.store.head(session)).status(self.now()) != "live":
                await self.store.sweep(self.now())  # not `delete`: another may have made it anew just now

    async def _begin_again(self, cached: CachedSession) -> None:
        """Make an empty thread of one that was deleted, but stays for its copies."""

        async def clear(_: CachedSession, change: Change) -> None:
            for field in Thread.model_fields:
                change.set(field, value={})

        step = await self._step(cached, {"name": "begin_again", "input": {}}, clear)
        assert step is not None
        commit = self._with_snapshot(step).commit
        assert commit.snapshot is not None
        fresh = self._new_head(cached.head.id, commit.entry.revision)
        head = replace(cached.head, revision=fresh.revision, expires=fresh.expires, fence=fresh.fence, closed=False)
        with suppress(StoreError):  # another process was quicker
            await self.store.restore(Record(head, [commit.entry], [commit.snapshot], {}))
        cached.forget()

    def _keep(self, cached: CachedSession) -> CachedSession:
        return self._cached.keep(cached.head.id, cached)

    # Steps.

    async def _step(self, cached: CachedSession, facts: dict[str, Any], edit: Edit) -> Step | None:
        """The step that an edit comes to; None if it changes nothing."""
        change = Change(cached.state)
        await edit(cached, change)
        if not change.patch:
            return None
        after = StateAt(change.thread, cached.progress.after(0.0))
        return cached.prepare("call", facts, self.now(), change.patch, after, expires=self._renewal(cached.head))

    def _with_snapshot(self, step: Step) -> Step:
        commit = step.commit
        if commit.snapshot is not None:
            return step
        elsewhere = Elsewhere(self.store.large)
        body = write_document(step.standing.state, step.standing.progress, elsewhere)
        weight = Weight(len(body), elsewhere.size)
        snapshot, blobs = Snapshot(commit.entry.revision, body), {**commit.blobs, **elsewhere.blobs}
        return replace(step, commit=replace(commit, snapshot=snapshot, blobs=blobs), weight=weight)

    def _renewal(self, head: Head) -> float | None:
        now = self.now()
        if self.ttl is None or head.expires - now > RENEWED * self.ttl:
            return None
        return now + self.ttl
