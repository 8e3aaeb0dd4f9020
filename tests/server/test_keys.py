"""API keys: strangers can create nothing, and each key has its limits."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from stateroom.errors import DefinitionError, NotFound
from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from stateroom.model import ModelSource
from stateroom.rollout import RunFiles, run
from stateroom.server import Key, read_keys
from tests.messages import raises
from tests.plans import make_run

ROW = {"initial_count": 3, "expected_count": 9}
MINUTE = 60.0


def key(name: str, **limits: int) -> Key:
    """A key whose own text is `NAME's key`."""
    return Key(name, sha256(f"{name}'s key".encode()).hexdigest(), **limits)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}'s key"}


async def told(served: Any, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and headers of the reply to a client without cookies."""
    served.client.cookie_jar.clear()
    async with served.client.post(f"{served.url}{path}", json=body or {}, headers=headers) as reply:
        return reply.status, reply.headers


async def test_strangers_create_nothing(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), keys=(key("ann"), key("ben")))
    requests: list[tuple[str, Any]] = [
        ("/counter/seed_session", ROW),
        ("/counter/seed_session", {"resources_session_id": "one", "task_data": ROW}),
        ("/counter/reset", ROW),
        ("/weather/seed_session", {}),
        ("/weather/get_weather", {"city": "Lima"}),
        ("/weather/verify", {"response": {"output": []}}),
        ("/weather/aggregate_metrics", {"verify_responses": []}),
        ("/threads", {}),
    ]
    for path, body in requests:
        for headers in ({}, bearer("eve"), {"Authorization": f"Bearer {key('ann').digest}"}):
            status, found = await told(served, path, body, **headers)
            assert (status, found.get("WWW-Authenticate", "")[:6]) == (401, "Bearer"), (path, headers)
        assert (await told(served, path, body, Cookie="stateroom_counter=x; stateroom_weather=x"))[0] == 401
    assert await served.services.store.heads() == []
    for path, body in requests:
        assert (await told(served, path, body, **bearer("ben")))[0] == 200, path
    for path in ("/", "/counter/", "/weather/reverify_mode", "/health", "/ready", "/docs", "/openapi.json"):
        async with served.client.get(f"{served.url}{path}") as reply:
            assert reply.status == 200, path


async def test_a_session_is_its_own_key(serve: Any) -> None:
    served = await serve(keys=(key("ann"),))
    _, seeded = await served.post("/seed_session", ROW, headers=bearer("ann"))
    assert (await served.post("/increment_counter", {"count": 2}))[0] == 200
    assert await served.post("/get_counter_value") == (200, {"count": 5})
    assert (await served.post("/seed_session", {**ROW, "seed_key": seeded["seed_key"]}))[0] == 200
    assert (await served.post("/verify", {**ROW, "response": {}}))[1]["reward"] == 0.0
    served.client.cookie_jar.clear()
    _, thread = await served.post("/threads", headers=bearer("ann"))
    headers = {"Authorization": f"Bearer {thread['token']}"}
    assert (await served.post(f"/threads/{thread['id']}/messages", {"message": "x"}, headers=headers))[0] == 200


async def test_each_key_has_so_many_sessions_a_minute(serve: Any) -> None:
    now = 1_000_000_000.0  # 40 seconds of a minute have passed
    served = await serve(keys=(key("ann", sessions=2), key("ben")), now=lambda: now)
    assert (await told(served, "/seed_session", ROW, **bearer("ann")))[0] == 200
    assert (await told(served, "/threads", **bearer("ann")))[0] == 200
    for path in ("/seed_session", "/reset", "/threads"):
        status, headers = await told(served, path, ROW if path != "/threads" else {}, **bearer("ann"))
        assert (status, headers["Retry-After"]) == (429, "21")
    assert (await told(served, "/seed_session", ROW, **bearer("ben")))[0] == 200
    now += 21
    assert (await told(served, "/seed_session", ROW, **bearer("ann")))[0] == 200


async def test_a_sessions_calls_count_as_those_of_its_key(serve: Any, connect: Any) -> None:
    now = 1_000_000_000.0
    served = await serve(keys=(key("ann", calls=6), key("ben", calls=9)), now=lambda: now)
    _, seeded = await served.post("/seed_session", ROW, headers=bearer("ann"))
    other = await connect(served.url)
    _, thread = await other.post("/threads", headers=bearer("ann"))
    assert (await served.post("/increment_counter", {"count": 2}))[0] == 200
    assert (await other.get(f"/threads/{thread['id']}", headers={"Authorization": f"Bearer {thread['token']}"}))[
        0
    ] == 200
    assert (await served.post("/increment_counter", {"count": 2}, headers=bearer("ben")))[0] == 200  # it is ann's still
    assert (await served.post("/nothing"))[0] == 404
    for path in ("/increment_counter", "/verify", "/nothing"):
        assert await served.refused(path, {"count": 2}) == (429, "rate_limited")
    header = seeded["mcp"]["headers"]
    assert (await other.post("/mcp", headers=header))[0] == 429
    now += MINUTE
    assert await served.post("/get_counter_value") == (200, {"count": 7})


async def test_a_key_stays_with_a_token_that_is_renewed(serve: Any) -> None:
    now = 1_000_000_000.0
    served = await serve(keys=(key("ann", calls=1),), now=lambda: now, ttl=1e6)
    assert (await served.post("/seed_session", ROW, headers=bearer("ann")))[0] == 200
    first = served.token
    now += 24 * 3600
    assert (await served.post("/get_counter_value"))[0] == 200
    assert served.token != first
    assert (await served.post("/get_counter_value"))[0] == 429


async def test_a_key_that_is_taken_away_takes_its_sessions_along(serve: Any, connect: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, keys=(key("ann"), key("ben")))
    await before.post("/seed_session", ROW, headers=bearer("ann"))
    after = await serve(store=shared_url, keys=(key("ben"),))
    client = await connect(after.url, like=before)
    assert await client.refused("/get_counter_value") == (401, "unauthorized")


async def test_an_mcp_client_needs_a_session_or_a_key(serve: Any) -> None:
    served = await serve(WeatherEnvironment(), keys=(key("ann"),))
    _, seeded = await served.post("/seed_session", {}, headers=bearer("ann"))
    for headers in (seeded["mcp"]["headers"], bearer("ann")):
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(f"{served.url}/mcp", http_client=http)) as client,
        ):
            assert not (await client.call_tool("get_weather", {"city": "Lima"})).is_error
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for headers in ({}, bearer("eve"), {"X-NeMo-Gym-Session-Token": "forged"}):
        assert (await told(served, "/mcp", rpc, Accept="application/json, text/event-stream", **headers))[0] == 401


async def test_a_forked_session_belongs_to_no_key(serve: Any, connect: Any) -> None:
    served = await serve(keys=(key("ann", calls=1),))
    _, seeded = await served.post("/seed_session", ROW, headers=bearer("ann"))
    admin = await connect(served.url)
    _, made = await admin.post(f"/admin/sessions/{seeded['session_id']}/fork")
    [fork] = made["sessions"]
    for _ in range(3):
        headers = {"Cookie": f"stateroom_counter={fork['token']}"}
        assert (await told(served, "/get_counter_value", **headers))[0] == 200


async def test_the_description_tells_of_keys(serve: Any) -> None:
    closed = (await (await serve(keys=(key("ann"),))).get("/openapi.json"))[1]
    open_to_all = (await (await serve()).get("/openapi.json"))[1]
    for path in ("/seed_session", "/threads"):
        operation = closed["paths"][path]["post"]
        assert {"key": []} in operation["security"]
        assert {} not in operation["security"]
        assert {"401", "429"} <= operation["responses"].keys()
        assert "429" not in open_to_all["paths"][path]["post"]["responses"]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


def line(name: str, rest: str = "") -> str:
    return f"{name} {key(name).digest}{rest}"


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    lines = ["# who may", line("ann", "  sessions=2 calls=30 "), "", line("ben", " calls=5"), line("c-1_")]
    assert read_keys(write(tmp_path / "keys", *lines)) == (
        key("ann", sessions=2, calls=30),
        key("ben", calls=5),
        key("c-1_"),
    )


@pytest.mark.parametrize(
    "bad",
    [
        *("# nobody", f"{line('ann')}\n{line('ann')}"),
        *(f"{line('ben')}\n{bad}" for bad in ("ann", "ann secret", line("a.b"))),
        *(f"{line('ben')}\n{line('ann', f' {limit}')}" for limit in ("calls=x", "calls=-1", "more=1")),
    ],
)
def test_a_file_that_has_no_keys_or_a_line_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    with raises(DefinitionError):
        read_keys(write(tmp_path / "keys", bad))


def test_a_file_of_keys_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises(NotFound):
        read_keys(tmp_path / "nothing")


async def test_workers_count_together(launch: Any, connect: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "keys", line("ann", " sessions=10"))
    path.chmod(0o644)
    command = launch("counter", "--workers", "2", "--api-keys", str(path))
    assert f"warning: other users can read {path}" in command.said

    async def seed() -> int:
        client = await connect(command.url)  # a connection of its own, which any worker may take
        return int((await client.post("/seed_session", ROW, headers=bearer("ann")))[0])

    statuses = await asyncio.gather(*(seed() for _ in range(40)))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) in (10, 20)  # 20 if a minute has ended meanwhile


async def test_a_runner_brings_its_key_and_waits_for_the_next_minute(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000_000.0

    def wait(reply: Any) -> float:
        nonlocal now
        now += MINUTE if reply.status == 429 else 0.0
        return 0.0

    monkeypatch.setattr("stateroom.rollout.client._retry_after", wait)
    served = await serve(keys=(key("ann", sessions=2),), now=lambda: now)
    given: dict[str, Any] = {
        "environment": CounterEnvironment(),
        "model": ModelSource("reference", CounterEnvironment.policies["reference"]),
        "tasks": [ROW] * 3,
        "server": served.url,
    }
    refused = await run(make_run(**given, files=RunFiles(tmp_path / "refused.jsonl")))
    assert (refused.failed, "unauthorized" in str(refused.first_error)) == (3, True)
    done = await run(make_run(**given, files=RunFiles(tmp_path / "done.jsonl"), api_key="ann's key"))
    assert (done.failed, now) == (0, 1_000_000_000.0 + MINUTE)
