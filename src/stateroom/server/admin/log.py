"""A session's log as it grows, for the admin API."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from stateroom.errors import StateroomError, StoreUnavailable, UnknownSession
from stateroom.server.events import HEADERS, HEARTBEAT, STILL_HERE, event
from stateroom.server.faults import fault
from stateroom.server.http import Receive, Send
from stateroom.session.transcript import Transcript, entry_data
from stateroom.state import to_json

if TYPE_CHECKING:
    from stateroom.server.app import Application

POLL = 0.25
"""Seconds between two looks at a log that is followed: other processes write to it too, and nobody says when."""


class Following:
    """A reply that goes on: an event for each entry, those to come included, until the session has ended."""

    def __init__(self, app: Application, transcript: Transcript) -> None:
        self.app = app
        self.transcript = transcript

    async def run(self, receive: Receive, send: Send) -> None:
        """Send events until the session has ended, the client has gone, or the server stops."""
        leaving = [asyncio.create_task(_disconnected(receive)), asyncio.create_task(self.app.stopping.wait())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._follow(_Listener(send, leaving))
            await send({"type": "http.response.body", "body": b""})
        finally:
            for task in leaving:
                task.cancel()

    async def _follow(self, listener: _Listener) -> None:
        while not listener.leaving:
            end = await self._tell_news(listener)
            if end is not None:
                await listener.tell(event("end", end))
                return
            await listener.pause()

    async def _tell_news(self, listener: _Listener) -> bytes | None:
        """Send what has come up since the last look; gives what is to be said at the end, if the session has ended."""
        transcript = self.transcript
        try:
            head = await self.app.store.head(transcript.session)
            async for entry, changes in transcript.read(head.revision):
                data = to_json(entry_data(entry, changes))
                await listener.tell(event("entry", data, entry.revision))
                if listener.leaving:
                    return None
        except UnknownSession:
            return to_json({"status": "deleted"})
        except StoreUnavailable:
            return None  # it may be there again at the next look
        except StateroomError as error:
            return fault(error, f"following {transcript.session}").body
        status = head.status(self.app.now())
        return None if status == "live" else to_json({"status": status})


class _Listener:
    """Whoever follows a log."""

    def __init__(self, send: Send, leaving: list[asyncio.Task[Any]]) -> None:
        self._send = send
        self._leaving = leaving
        self._told = monotonic()

    @property
    def leaving(self) -> bool:
        """Whether there is no more to be told."""
        return any(task.done() for task in self._leaving)

    async def tell(self, text: bytes) -> None:
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
        self._told = monotonic()

    async def pause(self) -> None:
        """Wait before the next look, but not for one who leaves."""
        if monotonic() - self._told > HEARTBEAT:
            await self.tell(STILL_HERE)
        await asyncio.wait(self._leaving, timeout=POLL, return_when=asyncio.FIRST_COMPLETED)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has gone; what it may send before is of no interest."""
    while (await receive())["type"] != "http.disconnect":
        pass
