"""The threads of a store: each is a session, read and changed as sessions are."""

from __future__ import annotations

from collections import OrderedDict
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
from stateroom.session.care import every_head
from stateroom.session.history import Weight, write_document
from stateroom.session.moment import Moment
from stateroom.session.reading import Reader, Standing
from stateroom.session.room import Room, Step, new_room
from stateroom.session.turns import ATTEMPTS, give_way
from stateroom.state import Elsewhere
from stateroom.store import Head, Record, Snapshot, Store

ENVIRONMENT = "langgraph"
PREFIX = f"{ENVIRONMENT}:"

NEVER = 250_000_000_000.0
"""When a thread expires that lives for ever: a time that every store and every calendar can hold."""

RENEWED = 0.99
"""An expiry that is this share of the time to live away need not be renewed."""

MAX_BYTES = 1 << 30

Edit = Callable[[Room, Change], Awaitable[None]]
"""Makes a change of the thread in a room. It is carried out again if others come first."""


class Threads:
    """Finds, makes and changes threads, and keeps those used last at hand."""

    def __init__(self, store: Store, ttl: float | None, hot: int, now: Callable[[], float]) -> None:
        self.store = store
        self.ttl = ttl
        self.hot = hot
        self.now = now
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._reader = Reader(store, Thread)

    async def find(self, thread: str) -> Room | None:
        """A thread as it is now; None if there is none."""
        session = PREFIX + thread
        room = self._rooms.get(session)
        try:
            if room is not None:
                async with room.lock:
                    await self._catch_up(room)
        except UnknownSession:  # deleted, and perhaps made anew
            self._rooms.pop(session, None)
            room = None
        try:
            room = room or self._keep(await self._opened(session))
        except UnknownSession as error:
            if error.session != session:  # what it was copied from is gone, which must not be
                raise
            return None
        return room if room.head.status(self.now()) == "live" else None

    async def every(self) -> AsyncIterator[str]:
        """All threads, the newest first."""
        async for page in every_head(self.store, ENVIRONMENT):
            for head in page:
                if head.status(self.now()) == "live":
                    yield head.id.removeprefix(PREFIX)

    async def change(self, thread: str, facts: dict[str, Any], edit: Edit, *, whole: bool = False) -> Room:
        """Change a thread, which is made if there is none; with `whole`, the log can be cut off before the change."""
        session = PREFIX + thread
        for attempt in range(ATTEMPTS):
            await give_way(attempt)
            room = self._rooms.get(session) or await self._found_or_made(session)
            self._keep(room)
            async with room.lock:
                try:
                    if room.stale:
                        await self._catch_up(room)
                    step = await self._step(room, facts, edit)
                    if step is not None:
                        await room.commit(self._with_snapshot(step) if whole else step, self._renewal(room.head))
                        return room
                    revision = room.head.revision
                    await self._catch_up(room)  # the store would refuse a stale change, but is not asked for none
                    if room.head.revision == revision:
                        return room
                except Conflict:
                    continue
                except (SessionExpired, SessionClosed, UnknownSession):  # deleted, and perhaps made anew
                    self._rooms.pop(session, None)
        raise Conflict(session, room.head.revision, f"thread {thread!r} is too busy: others always come first")

    async def copy(self, source: str, target: str) -> None:
        """Make a thread that begins with all that another has."""
        room = await self.find(source)
        if room is None:
            raise UnknownSession(PREFIX + source)
        head = self._new_head(PREFIX + target, room.head.revision, room.head.id)
        await self._sweep_expired(head.id)
        await self.store.create(head)

    async def delete(self, thread: str) -> None:
        """Remove a thread; what copies of it still need stays for them alone."""
        self._rooms.pop(PREFIX + thread, None)
        with suppress(UnknownSession):
            await self.store.delete(PREFIX + thread)

    async def forget_past(self, room: Room) -> None:
        """Cut off the log before the oldest checkpoint that there is, unless copies of the thread read it."""
        if await self.store.children(room.head.id):
            return
        head = room.head
        found = (saved.at for some in room.state.saved.values() for saved in some.values())
        needed = min(found, default=head.revision)
        snapshot = (await self.store.load(head.id, needed)).snapshot if needed > head.parent_revision else None
        if snapshot is not None:
            await self.store.prune(head.id, snapshot.revision)

    # Rooms.

    async def _opened(self, session: str) -> Room:
        standing, document = await self._reader.read(session)
        room = Room(self._reader, document.head, MAX_BYTES)
        room.hold(standing, document)
        return room

    async def _catch_up(self, room: Room) -> None:
        head = await self.store.head(room.head.id)
        if head.created != room.head.created:  # it was deleted, and another one made that has its id
            raise UnknownSession(head.id)
        if room.stale or head.revision != room.head.revision:
            await room.refresh()
        else:
            room.head = head

    async def _found_or_made(self, session: str) -> Room:
        try:
            room = await self._opened(session)
        except UnknownSession as error:
            if error.session != session:
                raise
            return await self._made(session)
        if room.head.status(self.now()) == "live":
            return room
        await self._sweep_expired(session)
        return await self._made(session)

    async def _made(self, session: str) -> Room:
        head = self._new_head(session, 1)
        facts = {"input": {"thread_id": session.removeprefix(PREFIX)}}
        beginning = Moment(0, head.created)
        room, entries, snapshot, blobs = new_room(self._reader, head, Thread(), beginning, facts, MAX_BYTES)
        try:
            await self.store.create(head, entries, snapshot, blobs)
        except StoreUnavailable:
            raise
        except StoreError:  # another process was quicker, or copies still read the one that was deleted
            room = await self._opened(session)
            if room.head.status(self.now()) != "live":
                await self._begin_again(room)
        return room

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

    async def _begin_again(self, room: Room) -> None:
        """Make an empty thread of one that was deleted, but stays for its copies."""

        async def clear(_: Room, change: Change) -> None:
            for field in Thread.model_fields:
                change.set(field, value={})

        step = await self._step(room, {"name": "begin_again", "input": {}}, clear)
        assert step is not None
        step = self._with_snapshot(step)
        assert step.snapshot is not None
        fresh = self._new_head(room.head.id, step.entry.revision)
        head = replace(room.head, revision=fresh.revision, expires=fresh.expires, fence=fresh.fence, closed=False)
        with suppress(StoreError):  # another process was quicker
            await self.store.restore(Record(head, [step.entry], [step.snapshot], {}))
        room.forget()

    def _keep(self, room: Room) -> Room:
        self._rooms[room.head.id] = room
        self._rooms.move_to_end(room.head.id)
        if len(self._rooms) > self.hot:
            self._rooms.popitem(last=False)
        return room

    # Steps.

    async def _step(self, room: Room, facts: dict[str, Any], edit: Edit) -> Step | None:
        """The step that an edit comes to; None if it changes nothing."""
        change = Change(room.state)
        await edit(room, change)
        if not change.patch:
            return None
        after = Standing(change.thread, room.moment.after(0.0))
        return room.prepare("call", facts, self.now(), change.patch, after)

    def _with_snapshot(self, step: Step) -> Step:
        if step.snapshot is not None:
            return step
        elsewhere = Elsewhere(self.store.large)
        body = write_document(step.standing.state, step.standing.moment, elsewhere)
        weight = Weight(len(body), elsewhere.size)
        return replace(
            step, snapshot=Snapshot(step.entry.revision, body), weight=weight, blobs={**step.blobs, **elsewhere.blobs}
        )

    def _renewal(self, head: Head) -> float | None:
        now = self.now()
        if self.ttl is None or head.expires - now > RENEWED * self.ttl:
            return None
        return now + self.ttl
