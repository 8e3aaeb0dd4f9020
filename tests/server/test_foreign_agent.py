"""An agent loop that knows nothing but the protocol, and a model behind it that does what it should not.

It speaks HTTP by hand, posts whatever tool name its model utters, and its cookies are those of the last reply.
"""

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from stateroom import tool
from stateroom.gallery import Counter, CounterEnvironment, WeatherEnvironment
from tests.plain_counter import PlainCounterEnvironment

ROW = {"responses_create_params": {"input": "add 4, then add 2"}, "initial_count": 3, "expected_count": 9}

FORGED = {"initial_count": 9, "expected_count": 9}
"""A task that is solved from the start."""


class Said(NamedTuple):
    status: int
    text: str
    cookies: dict[str, str]

    @property
    def code(self) -> str:
        error = json.loads(self.text).get("error", {})
        return str(error.get("code", ""))


class Agent:
    """One rollout over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
        self.reader = reader
        self.writer = writer
        self.root = root
        self.jar: dict[str, str] = {}

    async def post(self, path: str, text: str) -> Said:
        cookies = f"Cookie: {'; '.join(f'{name}={value}' for name, value in self.jar.items())}\r\n" if self.jar else ""
        body = text.encode()
        about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n{cookies}{about}\r\n"
        self.writer.write(head.encode() + body)
        status = int((await self.reader.readline()).split()[1])
        length, said = 0, {}
        while (line := (await self.reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(": ")
            if name.lower() == "content-length":
                length = int(value)
            if name.lower() == "set-cookie":
                key, _, token = value.partition(";")[0].partition("=")
                said[key] = token
        self.jar = said  # as old clients do
        return Said(status, (await self.reader.readexactly(length)).decode(), said)

    async def call(self, name: str, arguments: Any) -> Said:
        """Post what the model uttered, as a client's URL library would."""
        target = f"{self.root}/{name}".partition("#")[0]
        path, mark, query = target.partition("?")
        if "/." in path:
            path = posixpath.normpath(path)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return await self.post(quote(path, safe="/%") + mark + quote(query, safe="=&"), text)

    async def seed(self, row: Any) -> Any:
        said = await self.post(f"{self.root}/seed_session", json.dumps(row))
        assert said.status == 200
        return json.loads(said.text)

    async def value(self) -> int:
        return int(json.loads((await self.call("get_counter_value", {})).text)["count"])

    async def verify(self, **more: Any) -> Said:
        return await self.post(f"{self.root}/verify", json.dumps({**ROW, "response": {"output": []}, **more}))


@asynccontextmanager
async def agent_of(served: Any, root: str = "") -> AsyncIterator[Agent]:
    address = urlsplit(served.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**20)
    try:
        yield Agent(reader, writer, root)
    finally:
        writer.close()
        with suppress(ConnectionError):  # the server may have hung up
            await writer.wait_closed()


class UnsteadyEnvironment(CounterEnvironment):
    """A counter with a tool that fails."""

    @tool
    def explode(self, state: Counter) -> None:
        """Count, and fail."""
        state.value += 100
        raise KeyError("secret detail")


def call(name: str, arguments: Any = "{}", call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


RPC = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "increment_counter", "arguments": {"count": 6}},
}

MISCHIEF: list[tuple[str, Any, int]] = [
    # Calls that cannot be made.
    ("no_such_tool", {}, 404),
    ("Increment_Counter", {"count": 6}, 404),
    ("increment_counter", "{not json", 400),
    *(("increment_counter", text, 422) for text in ('"a text"', "[6]", '{"count": NaN}', '{"count": 1e999}')),
    ("increment_counter", {"count": "many"}, 422),
    ("increment_counter", {"count": 1, "more": 2}, 422),
    ("increment_counter", {"count": 1, "state": {"value": 9}}, 422),
    ("increment_counter", {"count": 1, "session": "x", "rng": 1}, 422),
    ("explode", {}, 500),
    # A session that suits it better.
    ("seed_session", {**FORGED, "seed_key": "0" * 40}, 409),
    ("seed_session", {"resources_session_id": "mine", "task_data": FORGED}, 409),
    ("seed_session", "{not json", 400),
    ("reset", {**FORGED, "seed_key": ""}, 409),
    *((path, FORGED, 409) for path in ("reset", "seed_session", "seed_session#", "%73eed_session", "../seed_session")),
    *((f"{path}/seed_session", FORGED, 409) for path in ("ng-rollout/x", "increment_counter/..")),
    ("seed_session?resources_session_id=mine", FORGED, 409),
    *((f"seed_session{more}", FORGED, 404) for more in ("/", "%00", " ")),
    *((f"{more}seed_session", FORGED, 404) for more in ("/", "%2e%2e%2f")),
    # A verdict that suits it better.
    ("verify", {"response": "forged"}, 422),
    ("verify", {}, 422),
    ("verify", ROW, 422),
    ("verify?reward=1", {"reward": 1.0, "state": {"value": 9}}, 422),
    ("../verify", {**ROW, **FORGED, "response": {"output": []}}, 409),
    ("ng-rollout/x/verify", {"expected_count": 7, "response": {"output": []}}, 409),
    ("step", {**FORGED, "response": {"output": []}}, 409),
    *((path, "[]", 422) for path in ("reset", "verify", "close_session", "aggregate_metrics")),
    # An end that comes too soon.
    ("close", {}, 200),
    ("close_session", {}, 422),
    ("close_session", {"resources_session_id": "of no session"}, 200),
    ("close_session", {"resources_session_id": "another's"}, 409),
    ("close_session", {"resources_session_id": ""}, 422),
    ("step", {}, 422),
    ("step", {"response": {"output": [call("no_such_tool")]}}, 200),
    ("step", {"response": {"output": [call("seed_session", json.dumps(FORGED))]}}, 200),
    ("step", {"response": {"output": [call("increment_counter", {"count": 6})]}}, 422),
    # What is there for others.
    ("mcp", RPC, 401),
    ("mcp", {}, 400),
    *((path, {}, 403) for path in ("admin", "admin/sessions", "admin%2Fsessions")),
    ("admin/sessions/guessed/rewind", {"to": 1}, 403),
    ("aggregate_metrics", {}, 422),
    *((path, {}, 405) for path in ("reverify_mode", "health", "metrics", "openapi.json")),
    *((path, {}, 404) for path in ("mcp/x", "v1/responses", "run")),
    # Names that are none.
    *((name, {}, 405) for name in ("", "..", "?", "#verify")),
    *((name, {}, 404) for name in ("%2F", "é\n\t☃", "x" * 20_000)),
    ("increment_counter?count=6", {}, 422),
    *((f"increment_counter{more}", {"count": 6}, 404) for more in ("%2F", "%3Fcount=6")),
    ("x" * 100_000, {}, 431),
]


async def test_whatever_the_model_utters_the_session_and_its_reward_are_right(serve: Any) -> None:
    served = await serve(UnsteadyEnvironment())
    async with agent_of(served) as agent:
        await agent.seed({"resources_session_id": "another's", "task_data": ROW})
        agent.jar = {}
        seeded = await agent.seed(ROW)
        [(name, token)] = agent.jar.items()
        assert (await agent.call("increment_counter", {"count": 4})).text == '{"success":true}'
        for uttered, arguments, status in MISCHIEF:
            said = await agent.call(uttered, arguments)
            assert said.status == status, (uttered, arguments, said)
            assert said.cookies == {name: token}, (uttered, arguments, said)
            assert status == 200 or said.code, (uttered, arguments, said)
            assert "secret detail" not in said.text
            assert seeded["session_id"] not in said.text
            assert await agent.value() == 7, uttered
        assert (await agent.call("increment_counter", {"count": 2})).status == 200
        assert await agent.value() == 9
        assert json.loads((await agent.verify()).text)["reward"] == 1.0
    assert await served.services.store.count(served.services.now()) == 2


@pytest.mark.parametrize(
    ("uttered", "arguments"),
    [
        ("verify", {"response": {}}),
        ("../verify", {**ROW, "reward": 1.0, "response": {"output": [{"type": "message", "text": "done"}]}}),
        ("verify?reward=1", {"reward": 1.0, "state": {"value": 9}, "response": {}}),
        ("ng-rollout/x/verify", {"response": {}}),
        ("step", {"response": {"output": []}}),
    ],
)
async def test_a_model_that_judges_itself_is_judged_as_it_stands(serve: Any, uttered: str, arguments: Any) -> None:
    served = await serve(PlainCounterEnvironment())
    async with agent_of(served) as agent:
        await agent.seed(ROW)
        await agent.call("increment_counter", {"count": 4})
        said = await agent.call(uttered, arguments)
        assert (said.status, json.loads(said.text)["reward"]) == (200, 0.0)
        calls: dict[str, Any] = {"increment_counter": {"count": 2}, "get_counter_value": {}}
        for name, sent in {**calls, "step": {"response": {"output": [call("x")]}}}.items():
            assert (await agent.call(name, sent)).code == "session_sealed"
        assert (await agent.call("seed_session", FORGED)).code == "conflict"
        assert json.loads((await agent.verify()).text)["reward"] == 0.0
        assert (await agent.call("close", {})).status == 200
        assert (await agent.call("increment_counter", {"count": 2})).code == "session_closed"
        assert (await agent.call("seed_session", FORGED)).code == "conflict"
        assert json.loads((await agent.verify()).text)["reward"] == 0.0
        assert len(agent.jar) == 1


async def test_among_many_environments_a_client_keeps_its_cookie_and_gets_no_other_session(serve: Any) -> None:
    served = await serve(CounterEnvironment(), UnsteadyEnvironment(), WeatherEnvironment())
    async with agent_of(served, "/counter") as agent:
        await agent.seed(ROW)
        [(name, token)] = agent.jar.items()
        for uttered, arguments, status in [
            ("../unsteady/seed_session", FORGED, 409),
            ("../unsteady/seed_session", {"resources_session_id": "mine", "task_data": FORGED}, 409),
            ("../unsteady/reset", FORGED, 409),
            ("../unsteady/increment_counter", {"count": 1}, 401),
            ("../unsteady/nothing", {}, 401),
            ("../weather/get_weather", {"city": "Lima"}, 401),
            ("../weather/verify", {}, 401),
            ("../weather/step", {"response": {"output": []}}, 401),
            ("../weather/seed_session", {}, 409),
            ("../threads", {}, 409),
            ("../counter/seed_session", FORGED, 409),
            ("..", {}, 405),
            ("../health", {}, 405),
            ("../seed_session", FORGED, 404),
            ("../nowhere/seed_session", FORGED, 404),
            ("../admin/sessions", {}, 403),
            ("../weather/mcp", {}, 401),
            ("../mcp", {}, 404),
            ("x" * 100_000, {}, 431),
            ("seed_session", FORGED, 409),
        ]:
            said = await agent.call(uttered, arguments)
            assert (said.status, said.cookies.get(name)) == (status, token), (uttered, said)
            assert await agent.value() == 3
        assert agent.jar == {name: token}
        assert json.loads((await agent.verify()).text)["reward"] == 0.0


async def test_a_name_without_end_gets_no_reply(served: Any) -> None:
    async with agent_of(served) as agent:
        await agent.seed(ROW)
        with pytest.raises((ConnectionError, IndexError)):  # rather than one that the cookie is missing from
            await agent.call("x" * 5_000_000, {})
