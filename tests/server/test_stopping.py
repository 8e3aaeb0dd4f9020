"""The end of a server: asked for, calls in flight are finished; by force, nothing that was acknowledged is lost."""

import asyncio
import select
import signal
import socket
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stateroom.server.asgi import SEND_WHOLE
from stateroom.server.http import HTTPResponse
from tests.patience import PATIENCE
from tests.server.conftest import listening, until

pytestmark = pytest.mark.more("time")

LARGE = 15_000_000
"""Bytes of which the system takes only a part when nobody reads them."""


async def refuses(port: int) -> bool:
    """Whether nobody listens any more."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGTERM, 2)],
    ids=["SIGTERM", "SIGINT", "workers"],
)
async def test_calls_in_flight_are_finished_and_all_else_ends(
    launch: Any, wire: Any, connect: Any, room: str, tmp_path: Path, number: int, workers: int
) -> None:
    command = launch(room, "--workers", str(workers), "--timeout", str(2 * PATIENCE))  # which is no reason to wait
    client = await connect(command.url)
    _, seeded = await client.post("/seed_session")
    admin = await connect(command.url)
    stream = await admin.client.get(f"{command.url}/admin/sessions/{seeded['session_id']}/log/stream")
    assert await stream.content.readline() == f"id: {seeded['session_id']}:1\n".encode()
    idle_reader, idle_writer = await wire(command.port)
    idle_writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await idle_reader.readuntil(b'ok"}')).startswith(b"HTTP/1.1 200")
    fresh_reader, _ = await wire(command.port)
    began, go_on = tmp_path / "began", tmp_path / "go on"
    call = asyncio.create_task(client.post("/add_later", {"began": str(began), "go_on": str(go_on)}))
    await until(began.exists)

    command.signal(number)
    await until(lambda: refuses(command.port))
    async with asyncio.timeout(PATIENCE):
        assert await idle_reader.read() == b""
        assert await fresh_reader.read() == b""
        assert (await stream.content.read()).startswith(b"event: entry\n")
    assert not call.done()
    assert command.process.poll() is None

    go_on.touch()
    assert await call == (200, 1)
    assert await asyncio.to_thread(command.wait) == 0
    command.wait_until(lambda: not command.alive())
    assert command.said == ""
    client = await connect(launch(room).url, like=client)
    assert (await client.post("/look"))[1]["value"] == 1


async def test_clients_that_do_not_read_or_do_not_finish_keep_nobody_waiting(
    launch: Any, connect: Any, room: str
) -> None:
    """Calls may take ten minutes here, and so might the end."""
    command = launch(room, "--timeout", "600", "--send-timeout", "600", "--receive-timeout", "600")
    client = await connect(command.url)
    _, seeded = await client.post("/seed_session")
    assert (await client.post("/note", {"size": LARGE}))[0] == 200
    head = f"HTTP/1.1\r\nHost: localhost\r\nCookie: stateroom_room={client.token}\r\nExpect: 100-continue\r\n"
    requests = [
        f'POST /text {head}Content-Length: 18\r\n\r\n{{"size": {LARGE}}}',
        f"GET /admin/sessions/{seeded['session_id']}/log/stream {head}\r\n",
        f"POST /text {head}Content-Length: 18\r\n\r\n{{",
    ]
    with ExitStack() as stack:
        for request in requests:
            unread = stack.enter_context(socket.create_connection(("127.0.0.1", command.port)))
            unread.sendall(request.encode())
            assert (await asyncio.to_thread(select.select, [unread], [], [], PATIENCE))[0]

        command.signal(signal.SIGTERM)
        assert await asyncio.to_thread(command.wait) == 0
    assert command.said == ""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_thread_that_a_tool_has_left_behind_keeps_nobody_waiting(
    launch: Any, connect: Any, room: str, workers: str
) -> None:
    command = launch(room, "--timeout", "0.1", "--workers", workers)
    client = await connect(command.url)
    await client.post("/seed_session")
    assert (await client.post("/hang"))[0] == 504
    command.signal(signal.SIGTERM)
    assert command.wait() == 0


async def test_an_interrupt_that_is_repeated_ends_it_at_once(
    launch: Any, connect: Any, room: str, tmp_path: Path
) -> None:
    command = launch(room)
    client = await connect(command.url)
    await client.post("/seed_session")
    began = tmp_path / "began"
    call = asyncio.create_task(client.post("/add_later", {"began": str(began), "go_on": str(tmp_path / "never")}))
    await until(began.exists)
    command.signal(signal.SIGINT)
    await until(lambda: refuses(command.port))
    command.signal(signal.SIGINT)
    assert await asyncio.to_thread(command.wait) == 0
    with pytest.raises(aiohttp.ClientError):
        await call


async def test_a_reply_that_waits_to_be_sent_is_not_lost(wire: Any) -> None:
    """At the moment of the stop it is in the outbox, where it stays until the end of the loop's turn."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert scope[SEND_WHOLE](HTTPResponse(200, b"the last word"), ())
        for connection in list(server.server_state.connections):
            connection.shutdown()

    async with listening(app, 1.0) as (server, url):
        reader, writer = await wire(int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nthe last word")


class Traffic:
    """A client that counts, and remembers what was acknowledged."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.acknowledged = 0

    async def run(self) -> None:
        """Add one again and again, until the server is gone."""
        while True:
            try:
                status, _ = await self.add(self.acknowledged + 1)
            except aiohttp.ClientError:
                return
            assert status == 200
            self.acknowledged += 1

    async def add(self, number: int) -> Any:
        return await self.client.post("/increment_counter", {"count": 1}, headers={"Idempotency-Key": str(number)})


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_what_was_acknowledged_is_there_after_a_crash(
    launch: Any, connect: Any, tmp_path: Path, workers: str
) -> None:
    command = launch("counter", "--workers", workers, STATEROOM_SECRET=None)
    clients = [Traffic(await connect(command.url)) for _ in range(8)]
    for traffic in clients:
        assert (await traffic.client.post("/seed_session", {"initial_count": 0, "expected_count": 0}))[0] == 200
    running = [asyncio.create_task(traffic.run()) for traffic in clients]
    await until(lambda: sum(traffic.acknowledged for traffic in clients) >= 400)
    command.kill()
    await asyncio.gather(*running)
    command.wait()

    again = launch("counter", STATEROOM_SECRET=None)
    for traffic in clients:
        traffic.client = await connect(again.url, like=traffic.client)
        for number in (1, traffic.acknowledged, traffic.acknowledged + 1):  # the last one nobody heard of
            assert await traffic.add(number) == (200, {"success": True})
        assert await traffic.client.post("/get_counter_value") == (200, {"count": traffic.acknowledged + 1})
    with closing(sqlite3.connect(tmp_path / "stateroom.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
