"""A line for each request, if the log is asked for, and nothing in it by which a client could be impersonated."""

import json
from typing import Any

import pytest
from yarl import URL

from stateroom.gallery import CounterEnvironment
from tests.server.conftest import until

SEED = {"initial_count": 3, "expected_count": 5}


@pytest.fixture(scope="module")
def logged(launch_once: Any) -> Any:
    """A server of two workers, with limits that are soon met."""
    return launch_once("counter", "--workers", "2", "--access-log", "json", "--max-body", "1024")


def lines(command: Any, path: str | None) -> list[dict[str, Any]]:
    """What the log says of requests to a path; every line is whole."""
    said = [json.loads(line) for line in command.said.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in said if line["path"] == path]


async def test_a_request_is_a_line(logged: Any, connect: Any) -> None:
    client = await connect(logged.url)
    await client.post("/ng-rollout/7/seed_session", SEED)
    _, counted = await client.post("/ng-rollout/7/get_counter_value")
    await until(lambda: lines(logged, "/ng-rollout/7/get_counter_value"))
    [line] = lines(logged, "/ng-rollout/7/get_counter_value")
    assert line.pop("time") < "9999"
    assert line.pop("seconds") >= 0
    assert line == {
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/ng-rollout/7/get_counter_value",
        "status": 200,
        "bytes": len(json.dumps(counted, separators=(",", ":"))),
        "environment": "counter",
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "environment"),
    [
        ("GET", "/health", 200, None),
        ("GET", "/docs", 200, None),
        ("GET", "/admin/sessions", 200, None),
        ("GET", "/mcp", 405, "counter"),
        ("GET", "/threads/x", 401, None),
        ("POST", "/no%0Atool", 404, None),
    ],
)
async def test_every_route_has_its_line(
    logged: Any, connect: Any, method: str, path: str, status: int, environment: str | None
) -> None:
    client = await connect(logged.url)
    await client.client.request(method, URL(logged.root + path, encoded=True))
    await until(lambda: lines(logged, path))
    [line] = lines(logged, path)
    assert (line["method"], line["status"], line["environment"]) == (method, status, environment)


@pytest.mark.parametrize(
    ("request_", "path", "status"),
    [
        (b"nonsense\r\n\r\n", "", 400),
        (b"GET /large HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", "/large", 413),
        (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 5000), f"/{'x' * 999}...", 404),
        (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 50_000), "/", 431),
    ],
    ids=["400", "413", "long", "431"],
)
async def test_what_is_refused_has_its_line(logged: Any, wire: Any, request_: bytes, path: str, status: int) -> None:
    reader, writer = await wire(logged.port)
    writer.write(request_)
    assert int((await reader.readline()).split()[1]) == status
    await until(lambda: [line for line in lines(logged, path) if line["status"] == status])


async def test_a_request_that_was_not_whole_in_time_has_its_line(
    serve: Any, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stateroom.access")
    served = await serve(receive_timeout=0.1, access_log="json")
    reader, writer = await wire(served.port)
    writer.write(b"POST /increment_counter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    await reader.read()
    [line] = [json.loads(record.message) for record in caplog.records]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/increment_counter", 408)


async def test_tokens_and_queries_are_not_in_the_log(logged: Any, connect: Any) -> None:
    client = await connect(logged.url)
    _, seeded = await client.post("/seed_session", SEED)
    token = seeded["mcp"]["headers"]["X-NeMo-Gym-Session-Token"]
    headers = {"Authorization": "Bearer a-secret-of-mine", "X-NeMo-Gym-Session-Token": token}
    await client.get("/openapi.json?key=a-secret-of-mine", headers=headers)
    await until(lambda: lines(logged, "/openapi.json"))
    assert token not in logged.said
    assert seeded["seed_key"] not in logged.said
    assert "a-secret-of-mine" not in logged.said


async def test_lines_may_be_text(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stateroom.access")
    served = await serve(access_log="text")
    await served.get("/health")
    _, address, method, path, status, size, _, environment = caplog.messages[0].split()
    assert (address, method, path, status, size, environment) == ("127.0.0.1", "GET", "/health", "200", "15", "-")


async def test_a_stream_is_a_line_when_it_has_ended(logged: Any, connect: Any) -> None:
    client, admin = await connect(logged.url), await connect(logged.url)
    _, seeded = await client.post("/seed_session", SEED)
    path = f"/admin/sessions/{seeded['session_id']}/log/stream"
    async with admin.client.get(f"{logged.url}{path}") as stream:
        first = await stream.content.readline()
        assert lines(logged, path) == []
        await client.post("/close_session", {"resources_session_id": seeded["session_id"]})
        told = await stream.content.read()
    await until(lambda: lines(logged, path))
    [line] = lines(logged, path)
    assert (line["status"], line["bytes"]) == (200, len(first + told))


async def test_no_log_is_kept_unless_it_is_asked_for(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "stateroom.access")
    served = await serve(CounterEnvironment())
    assert (await served.get("/health"))[0] == 200
    assert caplog.records == []
