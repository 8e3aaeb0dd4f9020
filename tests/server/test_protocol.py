"""HTTP/1.1 byte by byte: what clients may do that the usual ones do not."""

import asyncio
import gc
import json
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stateroom.server import api, process
from tests.patience import PATIENCE
from tests.server.conftest import until

SEED = {"initial_count": 3, "expected_count": 5}
LIMIT = 32 * 2**10
"""Bytes that a head may have."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()


def post(path: str, body: Any = None, *headers: str) -> bytes:
    data = json.dumps({} if body is None else body).encode()
    return get(path, *headers, f"Content-Length: {len(data)}", method="POST") + data


async def read(reader: asyncio.StreamReader, *, bodiless: bool = False) -> Answer:
    """The next reply."""
    async with asyncio.timeout(PATIENCE):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        elif not bodiless:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split()[1]), headers, body)


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the server hangs up, and says nothing before."""
    async with asyncio.timeout(PATIENCE):
        return await reader.read() == b""


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def start(request: pytest.FixtureRequest, launch_once: Any, room: str, tmp_path_factory: Any) -> Any:
    """Starts servers on each of the event loops; in the end they must have had nothing to complain about."""
    stubs = tmp_path_factory.mktemp("stubs")
    if request.param == "asyncio":
        (stubs / "uvloop.py").write_text("raise ImportError('not here', name='uvloop')\n")
    commands = []

    def start(*options: str) -> Any:
        commands.append(launch_once(room, *options, PYTHONPATH=str(stubs)))
        return commands[-1]

    yield start
    for command in commands:
        assert ("/uvloop/" in Path(f"/proc/{command.process.pid}/maps").read_text()) == (request.param == "uvloop")
        assert command.said == ""


@pytest.fixture(scope="module")
def served(start: Any) -> Any:
    return start("--max-body", "100000")


@pytest.fixture(scope="module")
def impatient(start: Any) -> Any:
    """A server that does not wait long for a client to read."""
    return start("--send-timeout", "0.2")


async def seed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, row: Any = None) -> tuple[str, str]:
    """The cookie of a new session, as a header, and its id."""
    writer.write(post("/seed_session", row))
    seeded = await read(reader)
    return "Cookie: " + seeded.headers["set-cookie"].partition(";")[0], seeded.json["session_id"]


@pytest.fixture
async def session(served: Any, wire: Any) -> str:
    """The cookie of a session of its own, as a header."""
    return (await seed(*await wire(served.port)))[0]


async def test_requests_in_one_packet_are_answered_in_order(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    requests = [post("/add", {"count": 1}, session), post("/look", {}, session), get("/nothing"), get("/health")]
    writer.write(b"".join(requests * 10))
    for count in range(1, 11):
        assert (await read(reader)).json.keys() == {"process"}
        assert (await read(reader)).json["value"] == count
        assert (await read(reader)).status == 404
        assert (await read(reader)).json == {"status": "ok"}


async def test_requests_in_packets_of_their_own_are_answered_in_order(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for count in range(200):
        writer.write(post("/add", {}, session) if count % 2 else post("/look", {}, session))
        await asyncio.sleep(0)
    replies = [(await read(reader)).json for _ in range(200)]
    assert [reply.get("value") for reply in replies] == [None if count % 2 else count // 2 for count in range(200)]


async def test_a_reply_waits_for_a_stream_that_was_asked_for_before(served: Any, wire: Any, session: str) -> None:
    other_reader, other = await wire(served.port)
    other.write(get("/admin/sessions"))
    listed = (await read(other_reader)).json
    newest = listed["sessions"][0]["id"]
    reader, writer = await wire(served.port)
    stream = get(f"/admin/sessions/{newest}/log/stream")
    writer.write(get("/health") + stream + get("/health") + post("/mcp") + get("/nothing"))
    assert (await read(reader)).json == {"status": "ok"}
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"text/event-stream" in head
    other.write(post("/add", {}, session))
    assert (await read(other_reader)).status == 200
    while b"event: entry" not in (line := await reader.readline()) or b"add" in line:
        pass
    other.write(get(f"/admin/sessions/{newest}", method="DELETE"))
    assert (await read(other_reader)).status < 300
    rest = await reader.readuntil(b"0\r\n\r\n")
    assert b"event: end" in rest
    assert b"HTTP/1.1" not in rest
    assert (await read(reader)).json == {"status": "ok"}
    assert (await read(reader)).status == 400
    assert (await read(reader)).status == 404


async def test_what_was_asked_before_nonsense_is_answered(served: Any, wire: Any, session: str) -> None:
    nonsense = [
        b"\x00\x01\x02\r\n\r\n",
        get("/add", "Transfer-Encoding: chunked", method="POST") + b"ZZ\r\n",
    ]
    for number, bad in enumerate(nonsense, 1):
        reader, writer = await wire(served.port)
        writer.write(post("/add", {}, session) + post("/look", {}, session) + bad)
        assert (await read(reader)).status == 200
        last = await read(reader)
        assert last.json["value"] == number
        assert last.headers["connection"] == "close"
        assert await ends(reader)


@pytest.mark.parametrize("request_", [get("/health", version="1.0"), get("/health", "Connection: close")])
async def test_a_client_may_want_no_more_than_one_reply(served: Any, wire: Any, request_: bytes) -> None:
    reader, writer = await wire(served.port)
    writer.write(request_)
    answer = await read(reader)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await ends(reader)


async def test_head_has_no_body(served: Any, wire: Any) -> None:
    reader, writer = await wire(served.port)
    writer.write(get("/health", method="HEAD") + get("/health"))
    answer = await read(reader, bodiless=True)
    assert (answer.status, answer.headers["content-length"]) == (200, "15")
    assert (await read(reader)).json == {"status": "ok"}


async def test_a_client_may_ask_before_it_sends_a_body(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    whole = post("/add", {"count": 7}, session, "Expect: 100-continue")
    head, _, body = whole.partition(b"\r\n\r\n")
    writer.write(get("/health") + head + b"\r\n\r\n")
    assert (await read(reader)).json == {"status": "ok"}
    assert (await read(reader)).status == 100
    writer.write(body)
    assert (await read(reader)).status == 200


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_to_upgrade_is_declined(
    served: Any, wire: Any, session: str, split: bool, chunked: bool
) -> None:
    reader, writer = await wire(served.port)
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    if chunked:
        head = get("/add", session, "Transfer-Encoding: chunked", *offer, method="POST")
        body = b'4\r\n{"co\r\n8\r\nunt": 9}\r\n0\r\n\r\n'
    else:
        head, _, body = post("/add", {"count": 9}, session, *offer).partition(b"\r\n\r\n")
        head += b"\r\n\r\n"
    for part in (head, body[:9], body[9:]) if split else (head + body,):
        writer.write(part)
        await asyncio.sleep(0.02 if split else 0)
    answer = await read(reader)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await ends(reader)
    reader, writer = await wire(served.port)
    writer.write(get("/health", *offer) + post("/look", {}, session))
    assert (await read(reader)).status == 200
    assert (await read(reader)).json["value"] == 9


# Bounds.


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"nonsense\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_nonsense_is_answered(served: Any, wire: Any, nonsense: bytes) -> None:
    reader, writer = await wire(served.port)
    writer.write(nonsense)
    answer = await read(reader)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")
    assert await ends(reader)


async def test_a_body_that_breaks_off_in_nonsense_changes_nothing(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    writer.write(get("/add", session, "Transfer-Encoding: chunked", method="POST") + b"2\r\n{}\r\n")
    await asyncio.sleep(0.02)
    writer.write(b"ZZ\r\n")
    assert (await read(reader)).status == 400
    assert await ends(reader)
    reader, writer = await wire(served.port)
    writer.write(post("/look", {}, session))
    assert (await read(reader)).json["value"] == 0


async def test_a_head_may_come_in_many_packets(served: Any, wire: Any) -> None:
    reader, writer = await wire(served.port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in get("/health", f"Fill: {'x' * 100}"):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await read(reader)).status == 200


async def test_a_head_may_be_as_large_as_the_limit(served: Any, wire: Any) -> None:
    reader, writer = await wire(served.port)
    writer.write(get("/health", f"Fill: {'x' * (LIMIT - 100)}"))
    assert (await read(reader)).status == 200


@pytest.mark.parametrize("packet", [2**20, 5000])
@pytest.mark.parametrize(
    "head", [get("/health", f"Fill: {'x' * LIMIT}"), get(f"/{'x' * LIMIT}")], ids=["header", "path"]
)
async def test_a_head_that_is_too_large_is_refused_and_the_connection_stays(
    served: Any, wire: Any, head: bytes, packet: int
) -> None:
    reader, writer = await wire(served.port)
    data = get("/health") + head + get("/health")
    for start in range(0, len(data), packet):
        writer.write(data[start : start + packet])
        await asyncio.sleep(0.005)
    assert (await read(reader)).status == 200
    answer = await read(reader)
    assert (answer.status, answer.json["error"]["code"]) == (431, "head_too_large")
    assert (await read(reader)).status == 200


async def test_a_head_without_end_is_not_read_to_its_end(served: Any, wire: Any) -> None:
    reader, writer = await wire(served.port)
    writer.write(get("/health", f"Fill: {'x' * 100 * LIMIT}")[:-4])
    with pytest.raises(ConnectionError):
        await reader.read()


async def test_a_body_that_is_too_large_is_refused_and_the_connection_stays(
    served: Any, wire: Any, session: str
) -> None:
    reader, writer = await wire(served.port)
    writer.write(post("/add", {"fill": "x" * 200_000}, session) + get("/health"))
    assert (await read(reader)).status == 413
    assert (await read(reader)).json == {"status": "ok"}


# Clients that leave, or do not listen.


async def test_clients_that_leave_do_no_harm(served: Any, wire: Any, session: str, tmp_path: Path) -> None:
    for part in (b"", b"GET /hea", post("/add", {"count": 1}, session)[:-1]):
        _, writer = await wire(served.port)
        writer.write(part)
        await writer.drain()
        writer.close()
    began, go_on = tmp_path / "began", tmp_path / "go on"
    _, writer = await wire(served.port)
    writer.write(post("/add_later", {"began": str(began), "go_on": str(go_on)}, session) + get("/health"))
    await until(began.exists)
    writer.transport.abort()
    go_on.touch()
    reader, writer = await wire(served.port)

    async def value() -> int:
        writer.write(post("/look", {}, session))
        return int((await read(reader)).json["value"])

    async def is_there() -> bool:
        return await value() == 1

    await until(is_there)  # the call was whole, so it was made; the one that was not never happened


async def test_a_client_that_reads_slowly_gets_everything_in_order(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    letters, size = "abcdefgh", 3_000_000
    for letter in letters:
        writer.write(post("/text", {"size": size, "letter": letter}, session) + post("/add", {}, session))
    other_reader, other = await wire(served.port)
    for _ in range(20):  # the server is there for others, and does no more for this one than it can send
        other.write(post("/look", {}, session))
        assert (await read(other_reader)).json["value"] < len(letters)
        await asyncio.sleep(0.01)
    for letter in letters:
        assert (await read(reader)).json == letter * size
        assert (await read(reader)).status == 200


async def test_a_client_that_closes_its_own_side_is_answered(
    served: Any, wire: Any, session: str, tmp_path: Path
) -> None:
    began, go_on = tmp_path / "began", tmp_path / "go on"
    reader, writer = await wire(served.port)
    slow = post("/add_later", {"began": str(began), "go_on": str(go_on)}, session)
    writer.write(slow + post("/look", {}, session) + post("/add", {}, session)[:-1])
    writer.write_eof()
    await until(began.exists)
    go_on.touch()
    assert (await read(reader)).json == 1
    last = await read(reader)
    assert (last.json["value"], last.headers["connection"]) == (1, "close")
    assert await ends(reader)


async def test_a_stream_ends_when_its_client_closes(served: Any, wire: Any, session: str) -> None:
    reader, writer = await wire(served.port)
    writer.write(get("/admin/sessions"))
    newest = (await read(reader)).json["sessions"][0]["id"]
    writer.write(get(f"/admin/sessions/{newest}/log/stream"))
    await reader.readuntil(b"event: entry")
    writer.write_eof()
    async with asyncio.timeout(30):
        await reader.read()


def unread(port: int, *requests: bytes) -> socket.socket:
    """A connection on which these are asked, and nothing is read."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"".join(requests))
    return client


def is_reset(client: socket.socket) -> bool:
    """Whether the server has dropped a connection, and the system what was on the way."""
    watched = select.poll()
    watched.register(client, 0)
    return any(happened & select.POLLERR for _, happened in watched.poll(0))


LARGE = 15_000_000
"""Bytes of which the system takes only a part when nobody reads them."""


@pytest.mark.parametrize("closing", [False, True], ids=["kept", "closing"])
async def test_a_client_that_does_not_read_its_reply_is_dropped(impatient: Any, wire: Any, closing: bool) -> None:
    reader, writer = await wire(impatient.port)
    session, _ = await seed(reader, writer)
    headers = (session, "Connection: close") if closing else (session,)
    with unread(impatient.port, post("/text", {"size": LARGE}, *headers)) as client:
        await until(lambda: is_reset(client))
    writer.write(get("/health"))
    assert (await read(reader)).status == 200


async def test_a_client_that_does_not_read_its_stream_is_dropped(impatient: Any, wire: Any) -> None:
    reader, writer = await wire(impatient.port)
    session, id = await seed(reader, writer)
    writer.write(post("/note", {"size": LARGE}, session))
    assert (await read(reader)).status == 200
    with unread(impatient.port, get(f"/admin/sessions/{id}/log/stream")) as client:
        await until(lambda: is_reset(client))


# What requests leave behind, in a server that can be looked into.


async def test_requests_leave_no_garbage_and_no_tasks(serve: Any, wire: Any) -> None:
    served = await serve()
    reader, writer = await wire(served.port)
    cookie, _ = await seed(reader, writer, SEED)
    requests = [
        post("/increment_counter", {"count": 1}, cookie),
        post("/get_counter_value", {}, cookie),
        post("/increment_counter", {"count": "many"}, cookie),
        post("/no_such_tool", {}, cookie),
        get("/health"),
        get("/mcp"),
        get("/admin/sessions"),
    ]
    tasks = len(asyncio.all_tasks())
    for request in requests * 2:  # what is made once
        writer.write(request)
        await read(reader)

    async def garbage_of(request: bytes) -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                writer.write(request)
                await read(reader)
        finally:
            gc.enable()
        return gc.collect()

    for request in requests:  # a thread of an earlier test may end meanwhile, and leave some once
        assert min([await garbage_of(request) for _ in range(3)]) < 100, request
    assert len(asyncio.all_tasks()) == tasks


async def test_a_stream_ends_with_its_client_though_another_request_waits(
    serve: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client that is not read from is missed when it is written to.
    monkeypatch.setattr(api, "HEARTBEAT_SECONDS", 0.05)
    served = await serve()
    _, seeded = await served.post("/seed_session", SEED)
    tasks = len(asyncio.all_tasks())
    reader, writer = await wire(served.port)
    writer.write(get(f"/admin/sessions/{seeded['session_id']}/log/stream"))
    await reader.readuntil(b"event: entry")
    writer.write(get("/health"))
    await writer.drain()
    await reader.readuntil(b": still here")
    writer.close()
    await until(lambda: len(asyncio.all_tasks()) <= tasks + 1)  # one of sse-starlette's own stays


@pytest.mark.parametrize("whole", [b"", b"\r\n", get("/health")], ids=["nothing", "line", "request"])
async def test_a_client_that_asks_for_nothing_is_hung_up_on(
    serve: Any, wire: Any, monkeypatch: pytest.MonkeyPatch, whole: bytes
) -> None:
    monkeypatch.setattr(process, "KEEP_ALIVE_SECONDS", 1)
    served = await serve()
    reader, writer = await wire(served.port)
    writer.write(whole)
    if whole == get("/health"):
        await read(reader)
    assert await ends(reader)


PARTS = {
    "head": (b"GET /health HTTP/1.1\r\nFill: x", b"x"),
    "second head": (get("/health") + b"GET /health HTTP/1.1\r\nFill: x", b"x"),
    "body": (get("/seed_session", "Content-Length: 999999", method="POST"), b"x"),
    "chunks": (get("/seed_session", "Transfer-Encoding: chunked", method="POST"), b"1\r\nx\r\n"),
    "offer": (get("/seed_session", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 999999"), b"x"),
}


@pytest.mark.parametrize("more", [False, True], ids=["silence", "trickle"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_request_must_be_whole_in_time(serve: Any, wire: Any, part: str, more: bool) -> None:
    served = await serve(receive_timeout=0.2)
    reader, writer = await wire(served.port)
    start, trickle = PARTS[part]

    async def send() -> None:
        writer.write(start)
        while more and not reader.at_eof():
            writer.write(trickle)
            await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    if part == "second head":
        assert (await read(reader)).status == 200
    answer = await read(reader)
    assert (answer.status, answer.json["error"]["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    with suppress(ConnectionError):  # of what was sent after the reply
        assert await ends(reader)
    sending.cancel()
    assert (await served.get("/health"))[0] == 200


async def test_a_request_that_was_refused_before_it_was_whole_is_not_refused_again(serve: Any, wire: Any) -> None:
    served = await serve(receive_timeout=0.2, max_body=1000)
    reader, writer = await wire(served.port)
    writer.write(get("/seed_session", "Content-Length: 999999", method="POST"))
    assert (await read(reader)).status == 413
    assert await ends(reader)


async def test_a_client_that_waits_for_a_slow_reply_is_not(
    serve: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KEEP_ALIVE_SECONDS", 0.2)
    served = await serve()
    _, seeded = await served.post("/seed_session", SEED)
    reader, writer = await wire(served.port)
    writer.write(get(f"/admin/sessions/{seeded['session_id']}/log/stream"))
    await reader.readuntil(b"event: entry")
    writer.write(b"GET /hea")
    await asyncio.sleep(0.6)
    assert not reader.at_eof()
    await served.post("/close_session", {"resources_session_id": seeded["session_id"]})
    await reader.readuntil(b"event: end")
