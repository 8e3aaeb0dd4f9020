"""A pooler in transaction mode before a PostgreSQL server: each transaction gets another server connection.

It understands as much of the protocol as it takes to see where a transaction ends. A client has a server connection
from its first message until the server says that it is ready and in no transaction; then that goes to the end of the
queue. So whatever a client leaves behind in the server's session is not there for what it asks next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from psycopg.pq import ConnStatus, PGconn

from tests.servers.process import ServerThread

SERVERS = 3
_REPORTED = ("server_version", "client_encoding", "server_encoding", "DateStyle", "integer_datetimes", "TimeZone")
_CANCEL, _TLS, _GSS = 80877102, 80877103, 80877104


class _Server:
    """A server connection. libpq makes it, and logs in; from then on only we use its socket."""

    def __init__(self, url: str) -> None:
        self._made = PGconn.connect(url.encode())
        if self._made.status != ConnStatus.OK:
            raise ConnectionError(self._made.error_message.decode())
        self.backend = self._made.backend_pid
        reported = ((name, self._made.parameter_status(name.encode())) for name in _REPORTED)
        self.parameters = {name: value for name, value in reported if value is not None}
        self._socket = socket.socket(fileno=os.dup(self._made.socket))

    async def open(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(sock=self._socket)
        return self

    def close(self) -> None:
        self.writer.close()
        self._made.finish()


class TransactionPooler(ServerThread):
    """Stands before the server of a URL, and has a `url` of its own; it runs in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._idle: asyncio.Queue[_Server] = asyncio.Queue()
        self.round_trips = 0
        """How often the server has answered, and waited for the next question."""
        self.transactions: Counter[int] = Counter()
        """How many transactions each of the server's processes has done."""
        super().__init__("pooler")
        self._clients: set[asyncio.Task[None]] = set()
        self._listener = self._do(self._start())
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        port = self._listener.sockets[0].getsockname()[1]
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()

    # In its thread.

    async def _start(self) -> asyncio.Server:
        for _ in range(SERVERS):
            self._idle.put_nowait(await _Server(self._target).open())
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._listener.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        while not self._idle.empty():
            self._idle.get_nowait().close()
        await asyncio.sleep(0)  # until the sockets are closed

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        with suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            if await self._greet(client, to_client):
                while await self._transaction(client, to_client):
                    pass
        to_client.close()
        self._clients.discard(task)

    async def _greet(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Let a client in, whoever it is; whether it came to stay."""
        while True:
            (length,) = struct.unpack("!i", await client.readexactly(4))
            (code,) = struct.unpack("!i", (await client.readexactly(length - 4))[:4])
            if code == _CANCEL:
                return False
            if code not in (_TLS, _GSS):
                break
            to_client.write(b"N")
        server = await self._idle.get()
        self._idle.put_nowait(server)
        to_client.write(_message(b"R", struct.pack("!i", 0)))
        for name, value in server.parameters.items():
            to_client.write(_message(b"S", name.encode() + b"\0" + value + b"\0"))
        to_client.write(_message(b"K", struct.pack("!ii", 1, 1)) + _message(b"Z", b"I"))
        return True

    async def _transaction(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Let a client do one transaction; whether it may want another."""
        kind, message = await _read(client)
        if kind == b"X":
            return False
        server = await self._idle.get()
        ended = False
        try:
            while not ended:
                server.writer.write(message)
                if kind in b"SQ":  # now it waits for the answer
                    ended = await self._answer(server, to_client)
                if not ended:
                    kind, message = await _read(client)
        finally:
            if ended:
                self.transactions[server.backend] += 1
                self._idle.put_nowait(server)
            else:  # the client has gone, and what it has begun must not be there for the next
                server.close()
                self._idle.put_nowait(await _Server(self._target).open())
        return True

    async def _answer(self, server: _Server, to_client: asyncio.StreamWriter) -> bool:
        """Hand on an answer; whether no transaction is open after it."""
        while True:
            kind, message = await _read(server.reader)
            if kind == b"Z":
                self.round_trips += 1
                # Before the client hears of it, the server connection is somebody else's.
                self._loop.call_soon(to_client.write, message)
                return message[-1:] == b"I"
            to_client.write(message)


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    header = await reader.readexactly(5)
    (length,) = struct.unpack("!i", header[1:])
    return header[:1], header + await reader.readexactly(length - 4)


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content
