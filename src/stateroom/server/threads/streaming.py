"""The answer to a run as it comes: an event for each item, and one for the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from stateroom.agent import OnItems
from stateroom.model import Item
from stateroom.server.events import HEADERS, HEARTBEAT, STILL_HERE, event
from stateroom.server.faults import fault
from stateroom.server.http import Reply, Send
from stateroom.state import to_json

Run = Callable[[OnItems], Awaitable[bytes]]
"""Runs a thread; gives what is told at the end, as JSON."""


class Streaming:
    """A reply that is sent while it is made. The run goes on when the client leaves: all of it is kept."""

    def __init__(self, run: Run, what: str) -> None:
        self._run = run
        self._what = what
        self._events: asyncio.Queue[bytes] = asyncio.Queue()
        self._refusal: Reply | None = None

    async def start(self) -> Reply | None:
        """Begin; gives the reply to a run that failed before it came to anything."""
        self._task = asyncio.create_task(self._tell_all())
        try:
            self._first = await self._events.get()
        except asyncio.CancelledError:
            await self._end()
            raise
        return self._refusal

    async def send(self, send: Send) -> None:
        """Send what comes."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            told = self._first
            while told:
                await send({"type": "http.response.body", "body": told, "more_body": True})
                told = await self._next()
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._end()

    async def _next(self) -> bytes:
        """The next event, or a sign of life; nothing at the end."""
        try:
            return await asyncio.wait_for(self._events.get(), HEARTBEAT)
        except TimeoutError:
            return STILL_HERE

    async def _end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _tell_all(self) -> None:
        told = False

        async def tell(items: Sequence[Item]) -> None:
            nonlocal told
            told = True
            for item in items:
                self._events.put_nowait(event("item", to_json(item)))

        try:
            self._events.put_nowait(event("end", await self._run(tell)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = fault(error, self._what)
            self._refusal = None if told else reply
            self._events.put_nowait(event("error", reply.body))
        self._events.put_nowait(b"")
