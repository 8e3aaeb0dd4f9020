"""`stateroom serve` as a process: how it starts, where it serves, and what it says."""

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.server.conftest import until

needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")

SEED = {"initial_count": 3, "expected_count": 5}
MODULE = (sys.executable, "-m", "stateroom.cli")


async def test_environments_of_ones_own(launch: Any, connect: Any, room: str, tmp_path: Path) -> None:
    path = room.partition(":")[0]
    shutil.copy(path, tmp_path / "hotel.py")
    command = launch("hotel:Room", "hotel.py:Lobby", "--workers", "2")
    for name in ("room", "lobby"):
        client = await connect(f"{command.root}/{name}")
        assert (await client.post("/seed_session"))[0] == 200
        assert (await client.post("/add", {"count": 2}))[0] == 200
        assert (await client.post("/look"))[1]["value"] == 2


async def test_workers_without_a_state_can_do_without_a_shared_store(launch: Any, connect: Any) -> None:
    client = await connect(launch("weather", "--workers", "2", "--store", "memory://").url)
    assert (await client.post("/get_weather", {"city": "Rome"}))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "variables", "warnings"),
    [
        (
            ["--host", "0.0.0.0"],
            {"STATEROOM_SECRET": None},
            ["without an admin token", "which other hosts do not share"],
        ),
        (["--host", "0.0.0.0", "--admin-token", "x"], {}, ["without API keys, anyone can create sessions"]),
        (["--host", "localhost"], {"STATEROOM_SECRET": None}, []),
        pytest.param(["--host", "::1"], {"STATEROOM_SECRET": None}, [], marks=needs_ipv6),
    ],
)
def test_a_server_that_others_can_reach_says_what_is_missing(
    launch: Any, arguments: list[str], variables: dict[str, None], warnings: list[str]
) -> None:
    command = launch("weather", *arguments, **variables)
    command.signal(signal.SIGTERM)
    command.wait()
    assert urlsplit(command.url).hostname == {"localhost": "127.0.0.1"}.get(arguments[1], arguments[1])
    assert len(command.said.splitlines()) == bool(warnings)
    assert all(warning in command.said for warning in warnings)


async def test_the_log_has_what_a_tool_raised_in_any_worker(launch: Any, connect: Any, room: str) -> None:
    command = launch(room, "--workers", "2")
    client = await connect(command.url)
    await client.post("/seed_session")
    status, body = await client.post("/fail")
    assert (status, body["error"]["code"]) == (500, "tool_failed")
    assert "lamp" not in str(body)
    command.wait_until(lambda: "RuntimeError: the lamp has gone out" in command.said)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ WARNING stateroom\.", command.said)


@pytest.mark.more("time")
async def test_it_outlives_its_terminal_under_nohup(launch: Any, connect: Any) -> None:
    nohup = shutil.which("nohup")
    if nohup is None:
        pytest.skip("there is no nohup")
    command = launch("counter", "--workers", "2", starter=(nohup, *MODULE))
    client = await connect(command.url)
    assert (await client.post("/seed_session", SEED))[0] == 200
    os.killpg(command.process.pid, signal.SIGHUP)
    assert await client.post("/get_counter_value") == (200, {"count": 3})
    command.signal(signal.SIGTERM)
    assert command.wait() == 0


async def test_a_file_says_what_is_served_with_its_arguments_and_no_password_is_said(
    launch: Any, connect: Any, tmp_path: Path
) -> None:
    (tmp_path / "stateroom.yaml").write_text(
        "environments:\n  strict: {environment: counter, args: {strict: true}}\n"
        "stores: {main: memory://me:hush@here}\n"
        "serve: {environments: [strict, extraction], store: main, max_body: 2048, port: 1}\n"
    )
    command = launch("--config", "stateroom.yaml", "serve.max_body=4096")
    root = f"http://127.0.0.1:{command.port}"
    assert command.lines[:2] == [f"counter: {root}/counter", f"extraction: {root}/extraction"]
    assert "store: memory://me:***@here   workers: 1" in command.lines[2]
    assert "hush" not in "".join(command.lines)
    client = await connect(command.root)
    await client.post("/counter/seed_session", SEED)
    await client.post("/counter/increment_counter", {"count": 2})
    assert (await client.post("/counter/verify", {"response": {"output": []}}))[1]["reward"] == 0.0
    assert (await client.post("/counter/verify", {"response": {"output": ["x" * 5000]}}))[0] == 413


NOTES = '''
from stateroom import Environment, State, tool


class Notes(State):
    lines: list[str] = []


class NotesEnvironment(Environment[Notes]):
    """Notes."""

    @tool
    def add(self, state: Notes, line: str) -> list[str]:
        """Add a line."""
        state.lines.append(line)
        return list(state.lines)

    def verify(self, state: Notes) -> float:
        return 1.0
'''

CLEAR = '''
    @tool
    def clear(self, state: Notes) -> list[str]:
        """Remove all lines."""
        cleared = list(state.lines)
        state.lines.clear()
        return cleared
'''


async def test_a_server_that_reloads_has_the_new_tool_and_the_old_sessions(
    launch: Any, connect: Any, tmp_path: Path
) -> None:
    source = tmp_path / "notes.py"
    source.write_text(NOTES)
    command = launch("notes.py:NotesEnvironment", "--reload", "--store", "sqlite:///notes.db")
    client = await connect(command.root)
    await client.post("/seed_session")
    assert await client.post("/add", {"line": "tea"}) == (200, ["tea"])
    source.write_text(NOTES + "    def broken(:\n")
    await until(lambda: "SyntaxError" in command.said)
    source.write_text(NOTES + CLEAR)

    async def clears() -> bool:
        with suppress(aiohttp.ClientConnectionError):  # a worker closes its connections when it ends
            return await client.post("/clear") == (200, ["tea"])
        return False

    await until(clears)
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    command.wait_until(lambda: not command.alive())


def test_studio_that_reloads_says_that_memory_is_lost(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    command = launch("notes.py:NotesEnvironment", "--reload", "--store", "memory://", command="studio")
    assert "memory:// loses all sessions when the server restarts" in command.said
