"""`stateroom studio` and `stateroom serve --studio` as processes."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stateroom import SessionLimits
from stateroom.gallery import CounterEnvironment
from stateroom.session import Sessions
from stateroom.store import open_store
from tests.server.conftest import Launch

TOKEN = "a token that is only good for tests"


def studio_of(lines: list[str]) -> str:
    """The URL of Studio among the lines that a server printed."""
    [url] = [line.removeprefix("studio: ") for line in lines if line.startswith("studio: ")]
    return url


async def get(url: str, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as reply:
        return reply.status, await reply.json()


async def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(url, json=body) as reply:
        return reply.status, await reply.json()


async def about(lines: list[str], **headers: str) -> dict[str, Any]:
    url = studio_of(lines).partition("#")[0]
    status, body = await get(f"{url}api/about", **headers)
    assert status == 200
    return dict(body)


async def test_without_anything_it_opens_on_what_is_there_and_makes_nothing(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    command = launch(command="studio")
    known = await about(command.lines)
    assert (known["environments"], known["runs"]) == ([], str(tmp_path / "rollouts"))
    assert not (tmp_path / "stateroom.db").exists()


async def test_the_modes_and_the_token_of_a_server(launch: Launch) -> None:
    command = launch("counter", "--studio", "read", "--workers", "2", "--studio-token", TOKEN)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/studio/#token=a%20token%20.*", studio_of(command.lines))
    assert (await about(command.lines, authorization=f"Bearer {TOKEN}"))["mode"] == "read"


@pytest.mark.parametrize("arguments", [["--studio", "counter"], ["--studio=full", "counter"]])
async def test_all_is_allowed_by_default(launch: Launch, arguments: list[str]) -> None:
    assert (await about(launch(*arguments).lines))["mode"] == "full"


@pytest.fixture
async def old_session(tmp_path: Path) -> str:
    """A session that expired long ago, in rooms.db."""
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        sessions = Sessions[Any](CounterEnvironment(), store, SessionLimits(now=lambda: 1000.0))
        session = await sessions.seed({"initial_count": 3, "expected_count": 5})
        await sessions.stop()
    return session.id


async def test_expired_sessions_stay_in_the_store(launch: Launch, old_session: str) -> None:
    """Somebody who looks at old sessions must not lose them by that."""
    command = launch("counter", "--store", "sqlite:///rooms.db", command="studio")
    status, body = await get(f"{command.root}/studio/api/sessions/{old_session}")
    assert (status, body["status"]) == (200, "expired")


async def test_without_its_environment_a_session_is_read_and_an_action_says_what_is_missing(
    launch: Launch, old_session: str
) -> None:
    command = launch("--store", "sqlite:///rooms.db", command="studio")
    place = f"{command.root}/studio/api/sessions/{old_session}"
    assert (await get(f"{place}/state"))[1]["state"] == {"value": 3}
    status, body = await post(f"{place}/checkpoint", {"name": "here", "by": "ada"})
    assert status == 409
    assert "start the server with that environment" in body["error"]["message"]


async def test_it_serves_people_and_no_agents(launch: Launch) -> None:
    """A token guards all that it has: without it nobody seeds a session or opens a thread."""
    command = launch("counter", "--host", "0.0.0.0", "--studio-token", TOKEN, "--store", "memory://", command="studio")
    root = f"http://127.0.0.1:{command.port}"
    for path in ("/seed_session", "/increment_counter", "/verify", "/reset", "/mcp", "/threads"):
        assert (await post(f"{root}{path}", {"initial_count": 3, "expected_count": 5}))[0] == 404, path
    _, document = await get(f"{root}/openapi.json", authorization=f"Bearer {TOKEN}")
    assert "/studio/api/about" in document["paths"]
    assert not [path for path in document["paths"] if path.startswith(("/seed_session", "/threads", "/admin"))]
    assert not command.said
