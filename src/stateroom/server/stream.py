"""Streams of the admin API: entries of sessions as they are committed, and new and changed sessions, as events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from sse_starlette import ServerSentEvent

from stateroom.errors import InvalidArguments, StateroomError, StoreUnavailable, UnknownSession
from stateroom.server import api
from stateroom.server.request import wrong_field
from stateroom.server.response import response_to
from stateroom.server.services import Services
from stateroom.session import Transcript, entry_data, head_data
from stateroom.state import to_json
from stateroom.store import Head

POLL = 0.25
"""Seconds between two reads of the store: other processes write to it, and do not tell."""

NEWEST = 200
"""Sessions that are looked at to find new and changed ones; if more come between two reads, the client is told to list
them."""

MOST = 100
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
        if len(after) > MOST:
            raise wrong_field(name, f"should have at most {MOST} sessions")
        return cls(after, follows_new, newest)

    def __str__(self) -> str:
        new = [NEW if self.newest is None else f"{NEW}:{api.cursor_of(*self.newest)}"] if self.follows_new else []
        return ",".join(new + [f"{quote(session, safe='')}:{after}" for session, after in self.after.items()])


def _read_newest(cursor: str, name: str) -> tuple[float, str]:
    try:
        return api.read_cursor(cursor, tuple[float, str])
    except InvalidArguments:
        raise wrong_field(name, f"has no position of an event after {NEW}:") from None


class NewestSessions:
    """The newest heads of the store, read once per interval for all streams of the process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()
        self._due = 0.0
        self._heads: list[Head] = []

    async def read(self) -> list[Head]:
        async with self._lock:
            if monotonic() >= self._due:
                self._heads = await self._services.store.heads(limit=NEWEST)
                self._due = monotonic() + POLL
            return self._heads


class SessionStream:
    """The events of one client.

    They are `entry` and `end` of each session that it follows, `session` for each new one, and `changed` for each of
    the newest whose revision, status, phase or reward is another. An event's id is the positions after it.
    """

    def __init__(self, services: Services, newest: NewestSessions, positions: Positions) -> None:
        self._services = services
        self._newest_sessions = newest
        self._positions = positions
        self._transcripts = [Transcript(services.store, *each) for each in positions.after.items()]
        """Of the sessions that have not ended."""
        self._known: dict[str, tuple[Any, ...]] = {}
        """The newest sessions, as they were at the last read."""
        self._oldest = positions.newest or OLDEST
        """The creation time and id of the oldest session that was looked at, if there may be older ones."""

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """All events, until every session has ended or the server stops."""
        stopping = self._services.stopping
        while self._transcripts or self._positions.follows_new:
            if self._positions.follows_new:
                async for event in self._new_sessions():
                    yield event
            for transcript in [*self._transcripts]:
                async for event in self._entries(transcript):
                    yield event
                    if stopping.is_set():
                        return
            if self._transcripts or self._positions.follows_new:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), POLL)
                    return

    def _event(self, kind: str, data: Any) -> ServerSentEvent:
        return api.event(kind, to_json(data), str(self._positions))

    async def _entries(self, transcript: Transcript) -> AsyncIterator[ServerSentEvent]:
        session, services = transcript.session, self._services
        end: dict[str, Any] | None = None
        try:
            head = await services.store.head(session)
            async for entry, changes in transcript.read(head.revision):
                self._positions.after[session] = entry.revision
                yield self._event("entry", {"session": session, "entry": entry_data(entry, changes)})
            status = head.status(services.now())
            end = None if status == "live" else {"status": status}
        except UnknownSession:
            end = {"status": "deleted"}
        except StoreUnavailable:
            pass  # it may be back at the next read
        except StateroomError as error:
            end = json.loads(response_to(error, f"following {session}").body)
        if end is not None:
            self._transcripts.remove(transcript)
            yield self._event("end", {"session": session, **end})

    async def _new_sessions(self) -> AsyncIterator[ServerSentEvent]:
        """An event for each session that came since the last read; `listening` when the first read is done."""
        try:
            heads = await self._newest_sessions.read()
        except StoreUnavailable:
            return  # it may be back at the next read
        now = self._services.now()
        last, is_full, known = self._positions.newest, len(heads) == NEWEST, self._known
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
            yield self._event("session", head_data(head, now))
        for head in heads:
            if known.get(head.id, self._known[head.id]) != self._known[head.id]:
                yield self._event("changed", head_data(head, now))

    def _advance(self, age: tuple[float, str]) -> None:
        """Sessions up to this one have been sent; one that was created earlier may come later."""
        self._positions = self._positions._replace(newest=max(age, self._positions.newest or OLDEST))
