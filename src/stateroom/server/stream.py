"""Streams of the admin API: entries of sessions as they are committed, and new and changed sessions, as events."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from sse_starlette import ServerSentEvent

from stateroom.errors import InvalidArguments, StateroomError, StoreUnavailable, UnknownSession
from stateroom.server import api
from stateroom.server.http import response_to, wrong_field
from stateroom.server.services import Services
from stateroom.session import EntryData, LogReader, SessionSummary, entry_data, read_page
from stateroom.state import to_json
from stateroom.store import Head

POLL_SECONDS = 0.25
"""Seconds between two reads of the store, to which other processes write."""

MAX_NEWEST_SESSIONS = 200
"""Sessions checked for news at a read; if more came since the last one, the client must list them."""

MAX_KEPT_BYTES = 4 << 20
"""Bytes of new entries that are kept for the streams of a session; one that is further behind reads them again."""

MAX_PAST_BYTES = 1 << 20
"""Bytes from which a stream sends what it has read, before it reads on."""

MAX_PAST_STREAMS = 4
"""Streams that read what was, each with a state in memory, at once."""

MAX_FOLLOWED = 100
"""Sessions that one stream follows at most."""

NEW = "*"
"""Stands for new sessions in the place of an id; the session that is called so is `%2A`."""

OLDEST = (0.0, "")
"""Before the creation time and id of every session."""


class Positions(NamedTuple):
    """Where a stream is: the revision in each session, and the newest session, by creation time and id.

    As text it is the parameter `sessions` of a stream that continues here, and the id of an event.
    """

    after: dict[str, int]
    """The revision after which each session is followed."""
    follows_new: bool = False
    newest: tuple[float, str] | None = None
    """New sessions are those after this one; None: those that come from now on."""

    @classmethod
    def read(cls, text: str, name: str) -> Positions:
        """The positions in a text, which is the parameter of this name."""
        after: dict[str, int] = {}
        follows_new, newest = False, None
        for part in text.split(","):
            session, _, position = part.rpartition(":")
            if part == NEW:
                follows_new = True
            elif session == NEW:
                follows_new, newest = True, _read_newest(position, name)
            elif session and position.isascii() and position.isdecimal() and len(position) <= len(str(2**53)):
                after[unquote(session)] = int(position)
            else:
                raise wrong_field(name, f"should be sessions as ID:AFTER, separated by commas, not {part!r}")
        if len(after) > MAX_FOLLOWED:
            raise wrong_field(name, f"should have at most {MAX_FOLLOWED} sessions")
        return cls(after, follows_new, newest)

    def __str__(self) -> str:
        new = [NEW if self.newest is None else f"{NEW}:{api.cursor_of(*self.newest)}"] if self.follows_new else []
        return ",".join(new + [f"{quote(session, safe='')}:{after}" for session, after in self.after.items()])


def _read_newest(cursor: str, name: str) -> tuple[float, str]:
    try:
        return api.read_cursor(cursor, tuple[float, str])
    except InvalidArguments:
        raise wrong_field(name, f"should have the position of an event after {NEW}:") from None


class NewEntries:
    """The entries of a session that came last, read once for all streams of the process."""

    def __init__(self, services: Services, session: str, revision: int) -> None:
        self._services = services
        self._reader = LogReader(services.store, session, revision)
        self._lock = asyncio.Lock()
        self._due = 0.0
        self._head: Head | None = None
        self._kept: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self.since = revision
        """The revision after which entries are kept."""

    async def read(self) -> Head:
        """Read what is new; gives the head."""
        async with self._lock:
            if self._head is None or monotonic() >= self._due:
                head = await self._services.store.head(self._reader.session)
                async for entry, changes in self._reader.read(head.revision):
                    self._keep(entry.revision, entry_json(head.id, entry_data(entry, changes)))
                    await asyncio.sleep(0)
                self._head, self._due = head, monotonic() + POLL_SECONDS
            return self._head

    def _keep(self, revision: int, entry: bytes) -> None:
        self._kept.append((revision, entry))
        self._size += len(entry)
        while self._size > MAX_KEPT_BYTES and len(self._kept) > 1:
            self.since, oldest = self._kept.popleft()
            self._size -= len(oldest)

    def after(self, revision: int) -> list[tuple[int, bytes]]:
        """The entries after a revision that is not before `since`, as data of events."""
        return [each for each in self._kept if each[0] > revision]


class FollowedSessions:
    """The sessions that streams of the process follow. They share what is new, and take turns to read what was."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._followed: WeakValueDictionary[str, NewEntries] = WeakValueDictionary()
        self._turns = asyncio.Semaphore(MAX_PAST_STREAMS)
        self._lock = asyncio.Lock()
        self._due = 0.0
        self._newest: list[Head] = []

    async def newest(self) -> list[Head]:
        """The newest heads of the store, read once per interval for all streams."""
        async with self._lock:
            if monotonic() >= self._due:
                self._newest = await self._services.store.heads(limit=MAX_NEWEST_SESSIONS)
                self._due = monotonic() + POLL_SECONDS
            return self._newest

    async def follow(self, session: str) -> NewEntries:
        """The new entries of a session, for as long as a stream uses them."""
        known = self._followed.get(session)
        if known is None:
            revision = (await self._services.store.head(session)).revision
            known = self._followed.setdefault(session, NewEntries(self._services, session, revision))
        return known

    async def past(self, session: str, after: int) -> tuple[list[tuple[int, bytes]], int | None]:
        """The next entries after a revision, as data of events, and the revision to go on from, if there is more."""
        async with self._turns:
            page = await read_page(self._services.store, session, after=after, max_bytes=MAX_PAST_BYTES)
            return [(entry["revision"], entry_json(session, entry)) for entry in page.entries], page.next


def entry_json(session: str, entry: EntryData) -> bytes:
    """The data of the event of an entry."""
    return to_json({"session": session, "entry": entry})


class SessionStream:
    """The events of one client.

    They are `entry` and `end` of each session that it follows, `session` for each new one, and `changed` for each of
    the newest whose revision, status, phase or reward is another. An event's id is the positions after it.
    """

    def __init__(self, services: Services, followed: FollowedSessions, positions: Positions) -> None:
        self._services = services
        self._followed = followed
        self._positions = positions
        self._open: dict[str, NewEntries | None] = dict.fromkeys(positions.after)
        """The sessions that have not ended, and what is new in them, once that is known."""
        self._known: dict[str, tuple[Any, ...]] = {}
        """The newest sessions, as they were at the last read."""
        self._oldest = positions.newest or OLDEST
        """The creation time and id of the oldest session that was looked at, if there may be older ones."""

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """All events, until every session has ended or the server stops."""
        stopping = self._services.stopping
        while self._open or self._positions.follows_new:
            if self._positions.follows_new:
                async for event in self._new_sessions():
                    yield event
            for session in [*self._open]:
                async for event in self._entries(session):
                    yield event
                    if stopping.is_set():
                        return
            if self._open or self._positions.follows_new:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), POLL_SECONDS)
                    return

    def _event(self, kind: str, data: Any) -> ServerSentEvent:
        return api.event(kind, to_json(data), str(self._positions))

    def _entry(self, session: str, revision: int, entry: bytes) -> ServerSentEvent:
        self._positions.after[session] = revision
        return api.event("entry", entry, str(self._positions))

    async def _entries(self, session: str) -> AsyncIterator[ServerSentEvent]:
        services, after = self._services, self._positions.after
        end: dict[str, Any] | None = None
        try:
            new = self._open[session] = self._open[session] or await self._followed.follow(session)
            head = await new.read()
            while after[session] < new.since:
                entries, onwards = await self._followed.past(session, after[session])
                for each in entries:
                    yield self._entry(session, *each)
                after[session] = max(after[session], new.since if onwards is None else onwards)
            for each in new.after(after[session]):
                yield self._entry(session, *each)
            status = head.status(services.now())
            end = None if status == "live" else {"status": status}
        except UnknownSession:
            end = {"status": "deleted"}
        except StoreUnavailable:
            pass  # it may be back at the next read
        except StateroomError as error:
            end = json.loads(response_to(error, f"following {session}").body)
        if end is not None:
            del self._open[session]
            yield self._event("end", {"session": session, **end})

    async def _new_sessions(self) -> AsyncIterator[ServerSentEvent]:
        """An event for each session that came since the last read; `listening` when the first read is done."""
        try:
            heads = await self._followed.newest()
        except StoreUnavailable:
            return  # it may be back at the next read
        now = self._services.now()
        last, is_full, known = self._positions.newest, len(heads) == MAX_NEWEST_SESSIONS, self._known
        new = [head for head in reversed(heads) if head.id not in known and head.age > self._oldest]
        self._known = {head.id: (head.revision, head.status(now), head.phase, head.reward) for head in heads}
        self._oldest = heads[-1].age if is_full else OLDEST
        if last is None:
            self._advance(heads[0].age if heads else OLDEST)
            yield self._event("listening", {})
            return
        if is_full and len(new) == len(heads):
            yield self._event("missed", {})
        for head in new:
            self._advance(head.age)
            yield self._event("session", SessionSummary.of(head, now))
        for head in heads:
            if known.get(head.id, self._known[head.id]) != self._known[head.id]:
                yield self._event("changed", SessionSummary.of(head, now))

    def _advance(self, age: tuple[float, str]) -> None:
        """Sessions up to this one have been sent; one that was created earlier may come later."""
        self._positions = self._positions._replace(newest=max(age, self._positions.newest or OLDEST))
