"""Who a server answers to: a web page from elsewhere reaches nothing on its reader's machine."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stateroom.errors import DefinitionError
from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from stateroom.server import hosts_at
from tests.messages import raises, says
from tests.server.serving_models import serving

ROW = '{"initial_count": 3, "expected_count": 5}'

INITIALIZE = (
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": '
    '{"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}}'
)

REQUESTS = [
    ("POST", "/counter/seed_session", ROW),
    ("POST", "/counter/reset", ROW),
    ("POST", "/weather/get_weather", '{"city": "Lima"}'),
    ("POST", "/weather/mcp", INITIALIZE),
    ("POST", "/threads", "{}"),
    ("GET", "/metrics", None),
    ("GET", "/admin/sessions", None),
    ("GET", "/nothing", None),
]


async def status(served: Any, method: str, path: str, body: str | None, **headers: str) -> int:
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    async with aiohttp.request(method, f"{served.url}{path}", data=body, headers=sent) as reply:
        return reply.status


async def test_a_page_from_elsewhere_reaches_nothing(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment())
    here = served.url.removeprefix("http://")
    for request in REQUESTS:
        for headers in (
            {"Host": "evil.example"},  # which has this machine's address now
            {"Host": "evil.example", "Origin": "http://evil.example"},
            {"Host": "127.0.0.1.evil.example:80"},
            {"Host": "[::1"},
            {"Origin": "https://evil.example", "Content-Type": "text/plain"},  # as a page may post without asking
            {"Origin": "http://localhost:9999"},  # another server of this machine, and its pages
            {"Origin": "null"},
        ):
            assert await status(served, *request, **headers) == 403, (request, headers)
    _, refused = await served.get("/metrics", headers={"Host": "rooms.example:8000"})
    assert refused["error"]["code"] == "forbidden"
    says(refused["error"]["message"])
    assert await served.services.store.heads() == []
    for headers in ({}, {"Host": "localhost:1"}, {"Host": "[::1]"}, {"Origin": f"http://{here}"}):
        for request in REQUESTS[:-1]:
            assert await status(served, *request, **headers) == 200, (request, headers)


async def test_probes_are_answered_whatever_host_they_are_for(served: Any) -> None:
    for path in ("/", "/health", "/ready"):
        assert await status(served, "GET", path, None, Host="10.0.0.7:8000") == 200


async def test_a_server_answers_to_the_names_that_are_allowed(launch: Any) -> None:
    command = launch("weather", "--allow-host", "Rooms.example", "--allow-host", "10.0.0.5")
    call = ("POST", "/get_weather", '{"city": "Lima"}')
    for host in ("rooms.example", "ROOMS.example:8443", "10.0.0.5", "localhost", "127.0.0.1:1"):
        assert await status(command, *call, Host=host) == 200, host
    for host in ("more.rooms.example", "10.0.0.6", "example"):
        assert await status(command, *call, Host=host) == 403, host
    assert await status(command, *call, Origin="https://rooms.example:8443") == 200


def test_elsewhere_only_allowed_names_are_looked_at() -> None:
    assert hosts_at("127.0.0.1", []) == hosts_at("::1", []) == ()
    assert hosts_at("0.0.0.0", []) is hosts_at("::", []) is hosts_at("10.0.0.5", []) is None
    assert hosts_at("0.0.0.0", ["Rooms.example"]) == ("rooms.example",)


@pytest.mark.parametrize("name", ["", "http://rooms.example", "rooms.example:80", "rooms example", "*"])
async def test_what_cannot_be_the_name_of_a_host(serve: Any, name: str) -> None:
    with raises(DefinitionError):
        await serve(hosts=(name,))


async def test_a_served_model_is_for_this_machine_too(tmp_path: Path) -> None:
    with serving("reference:counter", tmp_path) as model:
        for headers, expected in (({}, 200), ({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403)):
            async with aiohttp.request("GET", f"{model.url}/models", headers=headers) as reply:
                assert reply.status == expected
