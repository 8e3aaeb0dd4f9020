"""A live server that gets all kinds of bytes, from clients of all manners, and serves the others as if nothing were.

It stays up and ready, answers nothing with 500, logs no traceback, and the sessions of other clients are right.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from stateroom import gallery
from tests.server.conftest import CONSOLE_SCRIPT, Command
from tests.server.test_protocol import Answer, get, post, read
from tests.soak.rounds import Round

GALLERY = Path(gallery.__path__[0])
CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "counter": {"increment_counter": {"count": 1}, "get_counter_value": {}},
    "extraction": {"get_synonym_value": {"synonym": "bold"}, "extract_synonym_values": {"synonym_values": [1, 2]}},
    "refund": {"list_orders": {"email": "a@b.c"}, "refund": {"order_id": "A1", "amount": 1}, "reply": {"message": "?"}},
    "weather": {"get_weather": {"city": "Lima"}},
}
"""The environments that are served, and calls of their tools."""
ROWS = {name: json.loads((GALLERY / name / "tasks.jsonl").read_text("utf-8").split("\n")[0]) for name in CALLS}
ADMIN = "the captain's own"
BYSTANDERS, AT_ONCE = 4, 16
BREATH, PATIENCE = 0.25, 60.0
"""Seconds that a client waits for a reply before it says that it has no more to send, and after which it complains."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
MCP = ("Accept: application/json, text/event-stream", "Content-Type: application/json")
VALUES = (
    b"[" * 100_000, b'{"a":' * 50_000, b"[" * 300 + b"]" * 300, b"1" * 5_000, b"-0", b"1e999", b"NaN", b"null", b"true",
    b'"\\ud800"', b'"\\u0000"', b'"\xff\xfe"', b'"' + b"x" * 300_000 + b'"', b"{}", b"[]", b'{"a":1,"a":2}', b'"',
    b"9" * 30, b"1.5", b'{"$ref":"#"}', b'{"__class__":"x"}', b"",
)  # fmt: skip
"""JSON that is deep, large, odd or none."""
PIECES = (
    b"\r\n", b"\n", b"\0", b"\xff", b"%00", b"%2e%2e/", b"//", b"?", b" ", b":", b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\n",
    b"Content-Encoding: gzip\r\n", b"HTTP/9.9", b"ffffffffffffffff\r\n", b"0\r\n\r\n",
)  # fmt: skip
"""What has a meaning in HTTP."""


@contextmanager
def serving(round: Round, *options: str) -> Iterator[Server]:
    """A server of several environments, gone afterwards."""
    with round.place.fresh_folder() as folder, round.place.fresh_store(round.store) as url:
        arguments = ("serve", *CALLS, "--store", url, "--admin-token", ADMIN, "--port", "0", *options)
        command = Command(folder, [*CONSOLE_SCRIPT, *arguments], {"COLUMNS": "80"})
        try:
            yield Server(command)
        finally:
            command.kill()
            command.wait()


class Server:
    """A server as its clients see it."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.deaf: list[asyncio.StreamWriter] = []
        """Connections of clients that do not read, and do not leave either."""

    async def ask(self, request: bytes) -> Answer:
        """The reply to a request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.command.port)
        try:
            writer.write(request)
            return await read(reader)
        finally:
            writer.close()

    async def check(self) -> None:
        """It is up and ready, and has found nothing to complain about."""
        for path in ("/health", "/ready"):
            assert (await self.ask(get(path))).status == 200, path
        assert "Traceback" not in self.command.said, self.command.said[-3000:]


class Client:
    """A client with a session."""

    def __init__(self, server: Server, environment: str = "counter") -> None:
        self.server = server
        self.environment = environment

    async def begin(self, **more: str) -> None:
        """Seed a session."""
        reply = await self.server.ask(self.post("seed_session", ROWS[self.environment] | more))
        self.id = reply.json["session_id"]
        self.cookie = "Cookie: " + reply.headers["set-cookie"].partition(";")[0]
        self.token = "X-NeMo-Gym-Session-Token: " + reply.headers["set-cookie"].partition(";")[0].partition("=")[2]

    def post(self, path: str, body: Any, *headers: str) -> bytes:
        return post(f"/{self.environment}/{path}", body, *headers)

    def mcp(self, method: str, **params: Any) -> bytes:
        return self.post("mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, self.token, *MCP)

    def requests(self) -> list[bytes]:
        """All kinds of requests that this client may make, as they should be."""
        bodies = {
            "seed_session": ROWS[self.environment],
            "reset": ROWS[self.environment],
            "step": {"response": {"output": [{"type": "function_call", "name": "a", "arguments": "{}"}]}},
            "verify": {**ROWS[self.environment], "response": {"output": []}},
            "close_session": {"resources_session_id": self.id},
            "aggregate_metrics": {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}]},
        }
        seeding = [self.post(path, body) for path, body in bodies.items()]
        acting = [self.post(path, body, self.cookie) for path, body in (bodies | CALLS[self.environment]).items()]
        calls = [self.mcp("tools/call", name=name, arguments=body) for name, body in CALLS[self.environment].items()]
        methods = ("initialize", "tools/list", "ping", "notifications/cancelled", "resources/list", "logging/setLevel")
        said = [self.mcp(method, protocolVersion="2025-06-18", requestId=1, level="debug") for method in methods]
        paths = ("/", "/docs", "/openapi.json", "/metrics", "/admin/sessions", f"/admin/sessions/{self.id}/log")
        looking = [get(path, f"Authorization: Bearer {ADMIN}") for path in paths]
        return [*seeding, *acting * 3, *calls * 2, *said, *looking]


class Bystander(Client):
    """A client that uses its session in the usual way, by HTTP and by MCP, and keeps count."""

    count = ROWS["counter"]["initial_count"]

    async def act(self) -> None:
        self.count += 1
        request = self.post("increment_counter", {"count": 1}, self.cookie, f"Idempotency-Key: {self.count}")
        for _ in range(2):
            reply = await self.server.ask(request)
            assert (reply.status, reply.json) == (200, {"success": True}), reply
        reply = await self.server.ask(self.mcp("tools/call", name="get_counter_value", arguments={}))
        assert (reply.status, reply.json["result"]["structuredContent"]) == (200, {"count": self.count}), reply


def attack(client: Client, luck: Random) -> bytes:
    """A request that may be anything."""
    if luck.random() < 0.05:
        return luck.randbytes(luck.randrange(1, 3000))
    request = luck.choice(client.requests())
    if luck.random() < 0.1:  # a session of another environment's
        request = request.replace(f"/{client.environment}/".encode(), f"/{luck.choice([*CALLS])}/".encode())
    head, _, body = request.partition(b"\r\n\r\n")
    if body and luck.random() < 0.5:
        spots = [found.span() for found in re.finditer(rb'"[^"]*"|\d+|\{.*\}', body)]
        start, end = luck.choice(spots)
        body = body[:start] + luck.choice(VALUES) + body[end:]
        head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head)
    request = head + b"\r\n\r\n" + body
    for _ in range(luck.choice([0, 0, 0, 1, 1, 5])):
        start = luck.randrange(min(len(request), 1000) + 1)
        end = min(len(request), start + luck.choice([0, 0, 1, 5, 50]))
        put = luck.choice([b"", request[start:end] * 2, luck.choice(PIECES), luck.randbytes(luck.randrange(1, 9))])
        request = request[:start] + put + request[end:]
    return request


async def send(server: Server, request: bytes, luck: Random) -> bytes:
    """Send bytes in one of the manners that clients have; what comes back until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.command.port)
    manner = luck.choice(["whole", "whole", "twice", "drip", "half", "cut", "reset", "deaf"])
    size = luck.randrange(1, 200) if manner == "drip" else len(request) or 1
    with suppress(ConnectionError):  # it may well hang up
        for start in range(0, min(len(request), 20 * size), size):
            writer.write(request[start : start + size] * (2 if manner == "twice" else 1))
            await writer.drain()
            await asyncio.sleep(0)
        if manner == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if manner == "deaf":
            server.deaf.append(writer)
            return b""
    replies = b""
    if manner not in ("reset", "cut"):
        with suppress(OSError):  # such as a timeout: what was asked may have no end
            replies = await asyncio.wait_for(reader.read(2**16), 0 if manner == "half" else BREATH)
        with suppress(OSError):
            writer.write_eof()
        with suppress(ConnectionError):
            replies += await reader.read()
    writer.close()
    return replies


async def trouble(server: Server, seed: str) -> None:
    """One attack, and what it must not lead to."""
    luck = Random(seed)
    client = Client(server, luck.choice([*CALLS]))
    await client.begin()
    request = attack(client, luck)
    replies = await asyncio.wait_for(send(server, request, luck), PATIENCE)
    statuses = [int(status) for status in STATUS.findall(replies)]
    assert 500 not in statuses, f"{request[:2000]!r} was answered with {replies[:2000]!r}"


async def besiege(round: Round, server: Server) -> None:
    bystanders = [Bystander(server) for _ in range(BYSTANDERS)]
    for client in bystanders:
        await client.begin()
    for first in range(0, round.steps, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, round.steps))
        attacks = (trouble(server, f"{round.seed}/{number}") for number in numbers)
        await asyncio.gather(*attacks, *(client.act() for client in bystanders))
        round.tally.operations += len(numbers) + 3 * len(bystanders)
    await server.check()
    for writer in server.deaf:
        writer.close()


def play(round: Round) -> None:
    """Send `steps` attacks while others use their sessions."""
    with serving(round) as server:
        round.place.runner.run(besiege(round, server))
