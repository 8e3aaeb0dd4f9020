"""How much of everything there may be, and what is said when it is too much."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom import Environment, State, tool
from stateroom.session import MAX_READS
from tests.environments import TallyEnvironment
from tests.server.conftest import until
from tests.server.test_protocol import get, read

ROW = {"initial_count": 3, "expected_count": 9}


class Notes(State):
    text: str = ""


class NotesEnvironment(Environment[Notes]):
    """Write, and wait."""

    async def seed(self, task: Any) -> Notes:
        if (size := task.model_dump().get("size", 0)) is None:
            await asyncio.Event().wait()
        return Notes(text="x" * size)

    @tool
    def write(self, state: Notes, text: str) -> int:
        """Write."""
        state.text += text
        return len(state.text)

    @tool
    async def wait(self, state: Notes) -> None:
        """Wait."""
        await asyncio.Event().wait()

    @tool(effect="read", timeout=0.02)
    async def hurry(self, state: Notes) -> None:
        """Wait, and not for long."""
        await asyncio.Event().wait()

    async def verify(self, state: Notes) -> float:
        if state.text == "never":
            await asyncio.Event().wait()
        return float(len(state.text))


async def token_of(served: Any) -> str:
    """The cookie of a new session."""
    await served.post("/seed_session", ROW)
    [environment] = served.services.environments
    return f"stateroom_{environment}={served.token}"


def body_of(size: int) -> bytes:
    """A call's body of exactly so many bytes."""
    call = b'{"count":6'
    return call + b" " * (size - len(call) - 1) + b"}"


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_a_body_may_be_so_large_and_no_larger(serve: Any, chunked: bool) -> None:
    served = await serve(max_body=1000)
    token = await token_of(served)

    async def parts(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100):
            yield data[start : start + 100]

    for size, status in [(1001, 413), (100_000, 413), (1000, 200)]:
        data: Any = parts(body_of(size)) if chunked else body_of(size)
        async with served.client.post(f"{served.url}/increment_counter", data=data) as answer:
            said = await answer.json()
            assert answer.status == status
            assert answer.headers["Set-Cookie"].startswith(token)
        if status == 413:
            message = "the body exceeds this server's limit of 1,000 bytes"
            assert said == {"error": {"code": "too_large", "message": message}}
    assert await served.post("/get_counter_value") == (200, {"count": 9})


async def test_a_body_that_is_said_to_be_too_large_is_not_waited_for(serve: Any, wire: Any) -> None:
    served = await serve(max_body=1000)
    token = await token_of(served)
    for path in ("increment_counter", "seed_session", "verify", "close_session", "aggregate_metrics", "step"):
        reader, writer = await wire(served.port)
        writer.write(get(f"/{path}", f"Cookie: {token}", "Content-Length: 99999999999", method="POST"))
        answer = await read(reader)
        assert (answer.status, answer.json["error"]["code"]) == (413, "too_large")
        assert answer.headers["set-cookie"].startswith(token)


async def test_a_client_that_goes_away_before_its_body_is_whole_has_asked_for_nothing(serve: Any, wire: Any) -> None:
    environment = TallyEnvironment()
    served = await serve(environment)
    head = (f"Cookie: {await token_of(served)}", "Expect: 100-continue", "Content-Length: 12")
    reader, writer = await wire(served.port)
    writer.write(get("/add", *head, method="POST"))
    assert (await read(reader)).status == 100
    waiting = len(asyncio.all_tasks())
    writer.write(b"{")
    writer.close()
    await until(lambda: len(asyncio.all_tasks()) < waiting)
    assert environment.runs == 0


async def test_a_state_may_be_so_large_and_no_larger(serve: Any) -> None:
    served = await serve(NotesEnvironment(), max_state=20_000)
    await served.post("/seed_session", {})
    assert await served.post("/write", {"text": "x" * 15_000}) == (200, 15_000)
    status, refused = await served.post("/write", {"text": "x" * 10_000})
    assert (status, refused["error"]["code"]) == (413, "too_large")
    assert "20,000 bytes" in refused["error"]["message"]
    assert await served.post("/write", {"text": "x"}) == (200, 15_001)
    served.client.cookie_jar.clear()
    assert await served.refused("/seed_session", {"size": 30_000}) == (413, "too_large")
    assert len(served.client.cookie_jar) == 0


async def test_there_may_be_so_many_sessions_and_no_more(serve: Any) -> None:
    now = 1_000_000.0
    served = await serve(max_sessions=2, now=lambda: now)
    _, first = await served.post("/seed_session", ROW)
    for wrong in ({}, {"initial_count": "x"}):  # what could not be seeded does not count
        served.client.cookie_jar.clear()
        assert (await served.post("/seed_session", wrong))[0] == 422
    assert (await served.post("/seed_session", ROW))[0] == 200
    cookies = {cookie.key: cookie.value for cookie in served.client.cookie_jar}
    for path in ("seed_session", "reset"):
        served.client.cookie_jar.clear()
        async with served.client.post(f"{served.url}/{path}", json=ROW) as answer:
            said = await answer.json()
            assert (answer.status, said["error"]["code"], answer.headers["Retry-After"]) == (503, "busy", "1")
            assert "2 live sessions" in said["error"]["message"]
    assert (await served.post("/get_counter_value", cookies=cookies))[0] == 200
    session = await served.services.environments["counter"].sessions.open(first["session_id"])
    await session.close()
    now += 2
    served.client.cookie_jar.clear()
    assert (await served.post("/seed_session", ROW))[0] == 200


async def test_one_session_leaves_room_for_the_calls_of_others(serve: Any, connect: Any) -> None:
    environment = TallyEnvironment()
    environment.go_on.clear()
    served = await serve(environment, max_calls=8 * MAX_READS)
    await served.post("/seed_session", {})
    waiting = [asyncio.create_task(served.post("/add_slowly")) for _ in range(MAX_READS)]
    await until(lambda: served.app.in_flight == MAX_READS)
    assert await served.refused("/add") == (503, "busy")
    other = await connect(served.url)
    await other.post("/seed_session", {})
    assert await other.post("/add") == (200, 1)
    environment.go_on.set()
    assert all(status == 200 for status, _ in await asyncio.gather(*waiting))


async def test_a_request_that_is_not_whole_keeps_no_other_out(serve: Any, wire: Any) -> None:
    served = await serve(max_calls=1)
    head = (f"Cookie: {await token_of(served)}", "Expect: 100-continue", "Content-Length: 12")
    reader, writer = await wire(served.port)
    writer.write(get("/increment_counter", *head, method="POST"))
    assert (await read(reader)).status == 100
    assert await served.post("/get_counter_value") == (200, {"count": 3})
    writer.write(b'{"count": 6}')
    assert (await read(reader)).status == 200


async def test_so_many_requests_may_be_in_flight_and_no_more_but_probes(serve: Any) -> None:
    environment = TallyEnvironment()
    environment.go_on.clear()
    served = await serve(environment, max_calls=1)
    await served.post("/seed_session", {})
    waiting = asyncio.create_task(served.post("/add_slowly"))
    await environment.begun.wait()
    for path in ("/", "/health", "/ready"):
        assert await served.get(path) == (200, {"status": "ok"})
    for path in ("/mcp", "/admin/sessions", "/threads", "/docs", "/openapi.json", "/metrics", "/nothing"):
        async with served.client.get(f"{served.url}{path}") as answer:
            assert (path, answer.status, (await answer.json())["error"]["code"]) == (path, 503, "busy")
            assert "Set-Cookie" in answer.headers
    async with served.client.post(f"{served.url}/add", json={}) as answer:
        said = await answer.json()
        assert (answer.status, said["error"]["code"], answer.headers["Retry-After"]) == (503, "busy", "1")
    environment.go_on.set()
    assert await waiting == (200, 1)
    assert await served.post("/add") == (200, 2)


async def test_a_seed_a_call_and_a_verdict_may_take_so_long_and_no_longer(serve: Any) -> None:
    served = await serve(NotesEnvironment(), timeout=0.5)
    status, refused = await served.post("/seed_session", {"size": None})
    assert (status, refused["error"]["code"]) == (504, "timeout")
    assert refused["error"]["message"] == "notes.seed did not finish within 0.5 s"
    assert (len(served.client.cookie_jar), served.services.count.live) == (0, 0)
    await served.post("/seed_session", {})
    status, refused = await served.post("/wait")
    assert (status, refused["error"]["code"]) == (504, "timeout")
    assert refused["error"]["message"] == "wait did not finish within 0.5 s"
    status, refused = await served.post("/hurry")
    assert (status, refused["error"]["message"]) == (504, "hurry did not finish within 0.02 s")
    assert await served.post("/write", {"text": "never"}) == (200, 5)
    assert await served.refused("/verify", {"response": {}}) == (504, "timeout")
    assert await served.post("/write", {"text": "theless"}) == (200, 12)  # there was no verdict
    assert (await served.post("/verify", {"response": {}}))[1]["reward"] == 12.0


async def test_a_failed_call_writes_little_to_the_log(launch: Any, connect: Any, room: str) -> None:
    command = launch(room)
    client = await connect(command.root)
    await client.post("/seed_session", {})
    for _ in range(3):
        assert (await client.post("/fail", {"why": "x" * 1_000_000}))[0] == 500
    command.signal(signal.SIGTERM)
    command.wait()
    assert 3_000 < len(command.said) < 60_000
    assert "no running event loop" not in command.said
    assert "room.py" in command.said
