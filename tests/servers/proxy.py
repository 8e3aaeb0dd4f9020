"""A bad network: a TCP proxy before a real server, that loses, halves and delays what goes through it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from random import Random
from urllib.parse import urlsplit

from tests.servers.ports import free_port
from tests.servers.process import ServerThread

CHUNK = 1 << 16


class Fault(Enum):
    """What can become of a request. After each but `NONE` the connection is cut."""

    NONE = auto()
    REQUEST_LOST = auto()
    """The server gets none of it."""
    REQUEST_HALVED = auto()
    """The server gets the first half of its bytes."""
    ANSWER_LOST = auto()
    """The server has done it, and its answer gets lost."""
    ANSWER_HALVED = auto()
    """The client gets the first half of the bytes of the answer."""


FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


class Proxy(ServerThread):
    """Stands before the server of a URL, and has a `url` of its own; it runs in a thread of its own.

    What a client sends at once counts as one request, and so does what a library says by itself on a new connection.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        super().__init__("proxy")
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._ahead: deque[Fault] = deque()
        self._acts: deque[Callable[[], object] | None] = deque()
        self._share, self._random = 0.0, Random()
        self.delay = 0.0
        """By how many seconds everything is late, in both directions."""
        self.faults = 0
        """How many requests have met with a fault."""
        self.accept()
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()

    # What is to go wrong.

    def fail(self, *faults: Fault) -> None:
        """Let the next requests meet with these faults, one after the other."""
        self._ahead.extend(faults)

    def fail_at_random(self, share: float, random: Random) -> None:
        """From now on let this share of the requests meet with any of the faults; 0 ends that."""
        self._share, self._random = share, random

    def interrupt(self, request: int, act: Callable[[], object]) -> None:
        """Let something happen before a request is passed on: 0 is the next one. It is done in a thread."""
        self._acts.extend([*[None] * request, act])

    @property
    def interrupts(self) -> bool:
        """Whether the request that was to be interrupted is still to come."""
        return bool(self._acts)

    def refuse(self) -> None:
        """Cut all connections, and take no new ones."""
        self._do(self._end())

    def accept(self) -> None:
        """Take connections, at the same port as before."""
        self._do(self._accept())

    def cut(self) -> None:
        """Cut all connections."""
        self._do(self._cut())

    # In its thread.

    async def _accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> None:
        for writer in self._connections:
            writer.transport.abort()
        while self._connections:  # until each has noticed  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._connections.add(to_client)
        with suppress(OSError):
            server, to_server = await asyncio.open_connection(*self._target)
            await _Connection(self, to_client, to_server).run(client, server)
            to_server.close()  # which sends what was written, as an abort would not
        to_client.close()
        self._connections.discard(to_client)

    async def act(self) -> None:
        """Do what was to happen before the request that has come."""
        act = self._acts.popleft() if self._acts else None
        if act is not None:
            await asyncio.to_thread(act)

    def next_fault(self) -> Fault:
        """What becomes of the request that has come."""
        fault = Fault.NONE
        if self._ahead:
            fault = self._ahead.popleft()
        elif self._share and self._random.random() < self._share:
            fault = self._random.choice(FAULTS)
        self.faults += fault is not Fault.NONE
        return fault


class _Connection:
    """One client's connection, and the one to the server that was made for it."""

    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_client = to_client
        self._to_server = to_server
        self._fault = Fault.NONE
        """What the answer that is awaited will meet with."""

    async def run(self, client: asyncio.StreamReader, server: asyncio.StreamReader) -> None:
        """Hand on what comes, until one side ends or a fault does."""
        ways = [asyncio.create_task(self._requests(client)), asyncio.create_task(self._answers(server))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self, client: asyncio.StreamReader) -> None:
        while chunk := await self._read(client):
            if self._fault is Fault.NONE:  # else this is the rest of a request whose answer is awaited
                self._fault = self._proxy.next_fault()
                await self._proxy.act()
            if self._fault is Fault.REQUEST_LOST:
                return
            halved = self._fault is Fault.REQUEST_HALVED
            await _write(self._to_server, chunk[: len(chunk) // 2] if halved else chunk)
            if halved:
                return

    async def _answers(self, server: asyncio.StreamReader) -> None:
        while chunk := await self._read(server):
            if self._fault is Fault.ANSWER_LOST:
                return
            halved = self._fault is Fault.ANSWER_HALVED
            await _write(self._to_client, chunk[: len(chunk) // 2] if halved else chunk)
            if halved:
                return

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            chunk = await reader.read(CHUNK)
        except OSError:
            return b""
        if self._proxy.delay:
            await asyncio.sleep(self._proxy.delay)
        return chunk


async def _write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(chunk)
    await writer.drain()
