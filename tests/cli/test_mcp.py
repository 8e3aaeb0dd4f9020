"""`stateroom mcp`, as MCP clients start it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.cli.conftest import Refuses
from tests.cli.test_end_to_end import COMMAND, environ, run
from tests.patience import PATIENCE

NOISY = """
from stateroom import Environment, State, tool


class Sheet(State):
    lines: list[str] = []


class SheetEnvironment(Environment[Sheet]):
    'A tool that prints.'

    @tool
    def write(self, state: Sheet, line: str) -> int:
        'Write a line.'
        print("this is not JSON-RPC")
        state.lines.append(line)
        return len(state.lines)

    def verify(self, state: Sheet) -> float:
        return 0.0
"""


def started(folder: Path, *arguments: str) -> Any:
    """The transport of a client that starts the command."""
    command, *more = COMMAND
    given = StdioServerParameters(command=command, args=[*more, "mcp", *arguments], cwd=folder, env=environ())
    assert sys.__stderr__ is not None
    return stdio_client(given, errlog=sys.__stderr__)


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.more("time")), "auto"])
async def test_a_connection_is_a_session(tmp_path: Path, era: str) -> None:
    url = f"sqlite:///{tmp_path / 'rooms.db'}"
    async with Client(started(tmp_path, "counter", "--task", "1", "--store", url), mode=era) as client:
        assert client.instructions is not None
        assert client.instructions.startswith("Use the tools to change the counter: add 6.")
        names = [listed.name for listed in (await client.list_tools()).tools]
        assert names == ["increment_counter", "get_counter_value"]
        named: Any = {"stateroom/call-id": "a"}
        for _ in range(2):
            await client.call_tool("increment_counter", {"count": 2}, meta=named)
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 7}
        failed = await client.call_tool("increment_counter", {"count": "two"})
        assert (failed.is_error, "invalid_arguments" in str(failed.content)) == (True, True)
    [session] = json.loads(run(tmp_path, "sessions", "list", "--store", url, "--json").stdout)
    assert (session["environment"], session["status"], session["revision"]) == ("counter", "live", 2)


async def test_what_a_tool_prints_does_not_reach_the_client(tmp_path: Path) -> None:
    (tmp_path / "sheet.py").write_text(NOISY)
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    arguments = ("sheet.py:SheetEnvironment", "--input", "tasks.jsonl", "--store", "memory://")
    async with Client(started(tmp_path, *arguments)) as client:
        for number in (1, 2):
            assert str(number) in str((await client.call_tool("write", {"line": "a"})).content)


async def test_a_stateless_environment_is_served_too(tmp_path: Path) -> None:
    async with Client(started(tmp_path, "weather")) as client:
        told = await client.call_tool("get_weather", {"city": "Lima"})
        assert told.structured_content is not None
        assert told.structured_content["city"] == "Lima"


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "mcp", "counter"], cwd=tmp_path, env=environ(), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"session" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == -signal.SIGINT


def test_mistakes_are_told_before_anything_is_served(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "sheet.py").write_text(NOISY)
    refuses("mcp", "counter", "--task", 99)
    refuses("mcp", "sheet.py:SheetEnvironment")
