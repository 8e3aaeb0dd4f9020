"""Who may use the admin API."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from stateroom.server import Application

TOKEN = "a token that is only good for tests"


async def ask(
    app: Application,
    headers: Mapping[str, str] | list[tuple[str, str]],
    client: tuple[str, int] | None = ("127.0.0.1", 50_000),
    **more: Any,
) -> tuple[int, Any]:
    """What the application replies to a request for its sessions, just as a server would hand it over."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "scheme": "http", "http_version": "1.1", "client": client,
        "path": "/admin/sessions", "raw_path": b"/admin/sessions", "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs], **more,
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
async def app(serve: Any) -> Application:
    """An application that was not given a token, and answers to any name."""
    return (await serve(hosts=None)).app


async def test_with_a_token_only_whoever_has_it_gets_in(serve: Any) -> None:
    served = await serve(admin_token=TOKEN)
    for authorization in (
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \u00e4",
    ):
        headers = {"Authorization": authorization} if authorization else {}
        for method, path in (("GET", "sessions"), ("DELETE", "sessions/x"), ("GET", "nothing")):
            async with served.client.request(method, f"{served.url}/admin/{path}", headers=headers) as reply:
                assert reply.status == 401, authorization
                assert reply.headers["www-authenticate"].startswith("Bearer")
                error = (await reply.json())["error"]
                assert error["code"] == "unauthorized"
                assert "Authorization: Bearer TOKEN" in error["message"]
                assert TOKEN not in error["message"]
    for scheme in ("Bearer", "bearer", "BEARER "):
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert (await served.get("/admin/sessions", headers=headers))[0] == 200


async def test_an_empty_token_lets_nobody_in(serve: Any) -> None:
    served = await serve(admin_token="")
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}):
        assert (await served.get("/admin/sessions", headers=headers))[0] == 401


async def test_with_the_token_one_may_come_from_anywhere(serve: Any) -> None:
    app = (await serve(admin_token=TOKEN, hosts=None)).app
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Host": "rooms.example",
        "Origin": "https://console.example",
        "X-Forwarded-For": "203.0.113.7",
    }
    assert (await ask(app, headers, ("203.0.113.7", 1)))[0] == 200
    assert (await ask(app, headers, None))[0] == 200


async def test_without_a_token_programs_on_the_machine_get_in(served: Any) -> None:
    assert (await served.get("/admin/sessions"))[0] == 200
    for client, host in (
        ("127.0.0.1", "127.0.0.1:8000"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.1", "LocalHost:8000"),
        ("127.3.2.1", "127.3.2.1"),
        ("::1", "[::1]:8000"),
        ("::ffff:127.0.0.1", "localhost:8000"),
    ):
        assert (await ask(served.app, {"Host": host}, (client, 1)))[0] == 200, (client, host)
        origin = {"Host": host, "Origin": f"http://{host.lower()}"}
        assert (await ask(served.app, origin, (client, 1)))[0] == 200, (client, host)


ELSEWHERE = ("203.0.113.7", "10.0.0.1", "192.168.1.2", "fe80::1%eth0", "2001:db8::1", "::ffff:10.0.0.1", "")
OTHER_HOSTS = (
    *("rooms.example:8000", "evil.example@127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("0.0.0.0:8000", "192.168.1.2", "[::1", "2130706433", ""),
)
PAGES = ("https://evil.example", "http://localhost:9999", "http://127.0.0.1:8000", "null", "")
PROXIES = ("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto")


async def test_without_a_token_nobody_else_gets_in(app: Application) -> None:
    here = "127.0.0.1"
    refused: list[tuple[str, dict[str, str], str]] = [
        *((client, {}, f"comes from {client}; start the server with --admin-token") for client in ELSEWHERE),
        *((here, {"Host": host}, f"is for the host {host}") for host in OTHER_HOSTS),
        *((here, {"Host": "localhost:8000", "Origin": page}, f"comes from a web page of {page}") for page in PAGES),
        *((here, {name: here}, f"through a proxy: it has the header {name.lower()}") for name in PROXIES),
    ]
    for client, headers, why in refused:
        status, body = await ask(app, {"Host": "localhost", **headers}, (client, 1))
        assert (status, body["error"]["code"]) == (403, "forbidden"), (client, headers)
        assert why in body["error"]["message"]
    assert (await ask(app, {"Host": "localhost"}, None))[0] == 403
    assert (await ask(app, {"Host": "localhost"}, http_version="1.0"))[0] == 403
    assert (await ask(app, [("Host", "localhost"), ("Host", "evil.example")]))[0] == 403


async def test_a_real_server_hears_of_proxies_too(served: Any) -> None:
    for headers in ({"X-Forwarded-For": "127.0.0.1"}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert (await served.get("/admin/sessions", headers=headers))[0] == 403
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /admin/sessions HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"403"
    writer.close()
    await writer.wait_closed()


async def test_whoever_comes_with_a_sessions_token_gets_no_admin(served: Any, connect: Any) -> None:
    _, seeded = await served.post("/seed_session", {"initial_count": 3, "expected_count": 9})
    token = served.token
    admin = await connect(served.url)
    thread = (await admin.post("/threads"))[1]
    path = f"/admin/sessions/{seeded['session_id']}"
    for headers in (
        {"Cookie": f"a=b; stateroom_counter={token}"},
        {"Cookie": "stateroom_counter=out.of.date"},
        {"Cookie": f"stateroom_weather={token}"},
        {"X-NeMo-Gym-Session-Token": token},
        {"Authorization": f"Bearer {token}"},
        {"Authorization": f"Bearer {thread['token']}"},
    ):
        for rest, body in (("/rewind", {"to": 1}), ("/fork", {}), ("/close", {})):
            assert await admin.refused(path + rest, body, headers=headers) == (403, "forbidden"), headers
        for read in (path, "/threads"):
            assert (await admin.get(read, headers=headers))[0] == 403
    admin.client.cookie_jar.clear()
    assert (await admin.post(f"{path}/rewind", {"to": 1}))[0] == 200


async def test_the_admin_token_does_not_help_whoever_comes_with_a_sessions_too(serve: Any) -> None:
    served = await serve(admin_token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert (await served.get("/admin/sessions", headers=headers))[0] == 200
    await served.post("/seed_session", {"initial_count": 3, "expected_count": 9})
    assert (await served.get("/admin/sessions", headers=headers))[0] == 403
