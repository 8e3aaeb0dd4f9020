"""MCP, by the SDK's own client over a real connection."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from stateroom import Environment, Sessions, State, ToolError, open_store, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.rollout import example_file, read_tasks
from tests.messages import says
from tests.more import NODE
from tests.patience import PATIENCE

ROW = {"responses_create_params": {"input": "count"}, "initial_count": 3, "expected_count": 9}
HEADER = "X-NeMo-Gym-Session-Token"
ERAS = ["legacy", "2026-07-28"]
"""With the handshake of the older versions of the protocol, and the newer one without."""


class Note(State):
    lines: list[str] = []


class Page(TypedDict):
    number: int
    lines: list[str]


class Place(BaseModel):
    page: int
    line: int = 0


class Desk(Environment[Note]):
    """Tools of every effect and with every kind of result."""

    def seed(self, task: Any) -> Note:
        return Note()

    @tool(effect="read")
    def read(self, state: Note) -> list[str]:
        """The lines."""
        return list(state.lines)

    @tool
    def add(self, state: Note, line: str, places: dict[str, list[int]] | None = None) -> str:
        """Add a line.

        Args:
            line: What it says.
            places: Where it belongs.
        """
        state.lines.append(line)
        return f"{len(state.lines)} lines"

    @tool(effect="read")
    def page(self, state: Note, number: int, at: Place | None = None, size: int = 10) -> Page:
        """A page."""
        return {"number": number, "lines": ["\ud83d", *state.lines]}

    @tool(effect="external")
    def mail(self, state: Note, to: str) -> dict[str, Any]:
        """Mail the lines."""
        raise ToolError(f"nobody lives at {to}")

    @tool
    def stumble(self, state: Note) -> str:
        """Fall over."""
        state.lines.append("never seen")
        raise KeyError("a secret of the author's")

    @tool(effect="read")
    def odd(self, state: Note) -> dict[str, Any]:
        """What few can say."""
        return {"half": "\ud83d", "large": 10**30}

    def verify(self, state: Note, episode: Any) -> float:
        return 0.0


@pytest.fixture
async def desk(serve: Any) -> Any:
    return await serve(Desk())


@asynccontextmanager
async def connected(url: str, headers: dict[str, str] | None = None, era: str = "legacy") -> AsyncIterator[Client]:
    """A client of the SDK's that sends these headers with everything."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE, verify=False) as http,  # certificates take long to load
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        yield client


async def seeded(served: Any, row: Any = None, prefix: str = "") -> dict[str, str]:
    """The headers that a new session is reached with; the cookie of the seeding is let go."""
    reply = await served.good(f"{prefix}/seed_session", ROW if row is None else row)
    served.client.cookie_jar.clear()
    headers = reply["mcp"]["headers"]
    assert isinstance(headers, dict)
    return headers


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def error_of(result: CallToolResult) -> dict[str, Any]:
    assert result.is_error
    assert result.structured_content is None
    error = json.loads(text_of(result))["error"]
    assert isinstance(error, dict)
    return error


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(served: Any, body: Any, headers: dict[str, str] | None = None, path: str = "/mcp") -> tuple[int, Any]:
    """A message without the SDK's client, which does not tell the status."""
    return await served.post(path, body, headers={"Accept": "application/json", **(headers or {})})


class Ledger(Environment[Note]):
    """Has parameters that the model is shown under injected names."""

    @tool
    def pay(
        self, state: Note, account: Annotated[str, Field(alias="user")], json: str = Field("CA", alias="state")
    ) -> str:
        """Pay.

        Args:
            account: Whose.
            json: Where.
        """
        state.lines.append(f"{account} {json}")
        return state.lines[-1]

    @tool(effect="read")
    def join(self, room: Annotated[str, Field(alias="session")]) -> str:
        """Join."""
        return room

    def verify(self) -> float:
        return 0.0


async def test_a_parameter_shown_under_an_injected_name_works_everywhere(serve: Any) -> None:
    served = await serve(Ledger())
    headers = await seeded(served, {})
    async with connected(f"{served.url}/mcp", headers) as client:
        listed, _ = (await client.list_tools()).tools
        assert list(listed.input_schema["properties"]) == ["user", "state"]
        assert json.loads(text_of(await client.call_tool("pay", {"user": "ada", "state": "NY"}))) == "ada NY"
    await served.post("/seed_session", {})
    assert await served.post("/pay", {"user": "ben", "state": None}) == (200, "ben CA")
    async with open_store("memory://") as store:
        session = await Sessions(Ledger(), store).seed({})
        assert (await session.call("pay", {"user": "cleo"})).output == "cleo CA"
        assert (await session.call("pay", {"account": "cleo"})).code == "invalid_arguments"
    async with connected(f"{served.url}/mcp") as client:
        handle = json.loads(text_of(await client.call_tool("start_session", {})))["session"]
        meta: Any = {"stateroom/session": handle}
        assert json.loads(text_of(await client.call_tool("join", {"session": "blue"}, meta=meta))) == "blue"


@pytest.mark.parametrize("era", ERAS)
async def test_the_tools_are_listed_with_their_schemas_and_what_they_do(desk: Any, era: str) -> None:
    async with connected(f"{desk.url}/mcp", await seeded(desk), era=era) as client:
        listed = {listed.name: listed for listed in (await client.list_tools()).tools}
        result = await client.call_tool("page", {"number": 3})  # the client checks it
    assert set(listed) == {"read", "add", "page", "mail", "stumble", "odd"}
    for definition in Desk().tool_definitions():
        assert listed[definition["name"]].description == definition["description"]
    assert listed["add"].input_schema["properties"]["line"]["description"] == "What it says."
    page = listed["page"].input_schema
    assert page["required"] == ["number"]
    assert page["properties"]["size"] == {"type": "integer", "default": 10}
    assert page["properties"]["at"]["anyOf"][0]["properties"]["page"] == {"type": "integer"}
    assert "$" not in json.dumps(page)
    [returns] = [tool.output_schema for tool in listed.values() if tool.output_schema]
    assert returns["properties"]["lines"] == {"type": "array", "items": {"type": "string"}}
    assert result.structured_content == {"number": 3, "lines": ["\ufffd"]}
    assert json.loads(text_of(result)) == {"number": 3, "lines": ["\ud83d"]}
    hints = {
        name: tool.annotations and tool.annotations.model_dump(by_alias=True, exclude_none=True)
        for name, tool in listed.items()
    }
    changes = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}
    assert hints["read"] == {"readOnlyHint": True, "openWorldHint": False}
    assert (hints["add"], hints["mail"]) == ({**changes, "openWorldHint": False}, {**changes, "openWorldHint": True})


async def test_a_client_learns_whom_it_talks_to(served: Any) -> None:
    _, reply = await served.post("/seed_session", ROW)
    async with connected(served.url + reply["mcp"]["url_path"]) as client:
        assert client.server_info is not None
        assert (client.server_info.name, bool(client.server_info.version)) == ("counter", True)
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.resources is None
    assert reply["mcp"]["server_name"] == "counter"


@pytest.mark.parametrize("era", ERAS)
async def test_calls_change_the_session_that_the_token_names_and_no_other(served: Any, era: str) -> None:
    tasks = [{"initial_count": number * 100, "expected_count": number * 104} for number in range(5)]
    tokens = [await seeded(served, task) for task in tasks]

    async def episode(number: int) -> None:
        async with connected(f"{served.url}/mcp", tokens[number], era) as client:
            for step in range(1, 5):
                done = await client.call_tool("increment_counter", {"count": number})
                assert (done.is_error, done.structured_content) == (False, {"success": True})
                assert text_of(done) == '{"success":true}'
                value = await client.call_tool("get_counter_value")
                assert value.structured_content == {"count": number * 100 + number * step}

    await asyncio.gather(*(episode(number) for number in range(5)))
    cookie = {"Cookie": f"stateroom_counter={tokens[4][HEADER]}"}
    assert (await served.good("/verify", {**tasks[4], "response": {"output": []}}, headers=cookie))["reward"] == 1.0


@pytest.mark.parametrize("era", ERAS)
async def test_results_that_are_no_object_or_that_few_can_read_are_text(desk: Any, era: str) -> None:
    async with connected(f"{desk.url}/mcp", await seeded(desk), era) as client:
        added = await client.call_tool("add", {"line": "é", "places": {"a": [1]}})
        assert (text_of(added), added.structured_content) == ('"1 lines"', None)
        lines = await client.call_tool("read")
        assert (text_of(lines), lines.structured_content) == ('["é"]', None)
        odd = await client.call_tool("odd")
        assert (json.loads(text_of(odd)), odd.is_error) == ({"half": "\ud83d", "large": 10**30}, False)


async def test_failures_read_as_they_do_over_http(desk: Any) -> None:
    headers = await seeded(desk)
    cookie = {"Cookie": f"stateroom_desk={headers[HEADER]}"}
    async with connected(f"{desk.url}/mcp", headers) as client:
        for name, arguments in (("mail", {"to": "x"}), ("add", {"lin": "a"}), ("stumble", {})):
            failed = await client.call_tool(name, arguments)
            async with desk.client.post(f"{desk.url}/{name}", json=arguments, headers=cookie) as reply:
                assert text_of(failed) == await reply.text()
            assert "secret" not in error_of(failed)["message"]
        assert error_of(await client.call_tool("mail", {"to": "x"}))["message"] == "nobody lives at x"
        assert set(error_of(await client.call_tool("add", {"lin": "a"}))["fields"]) == {"line", "lin"}
        assert text_of(await client.call_tool("read")) == "[]"


async def test_a_call_id_makes_a_call_once(served: Any) -> None:
    headers = await seeded(served)
    async with connected(f"{served.url}/mcp", headers) as client:
        named: Any = {"stateroom/call-id": "a"}
        for _ in range(3):
            await client.call_tool("increment_counter", {"count": 1}, meta=named)
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 4}
        numbered: Any = {"stateroom/call-id": 7}
        bad = await client.call_tool("increment_counter", {"count": 1}, meta=numbered)
        says(error_of(bad)["message"])
    call = message("tools/call", name="increment_counter", arguments={"count": 1})
    for key in ("b", "b", "a"):
        await post(served, call, {**headers, "Idempotency-Key": key})
    async with connected(f"{served.url}/mcp", headers) as client:
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 5}


async def test_calls_are_counted(serve: Any) -> None:
    served = await serve(Desk())
    async with connected(f"{served.url}/mcp", await seeded(served)) as client:
        await client.call_tool("read")
        await client.call_tool("mail", {"to": "x"})
        await client.call_tool("made_up")
    await post(served, message("tools/call", name="read"))
    async with served.client.get(f"{served.url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    counted = re.compile(r'stateroom_calls_total{environment="desk",outcome="(\w+)",tool="(.+)"} 1\.0')
    assert {found.groups() for line in lines if (found := counted.fullmatch(line))} == {
        *(("ok", "read"), ("tool_error", "mail"), ("unknown_tool", "(unknown)"), ("error", "read"))
    }


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_never_seeded_starts_a_session(serve: Any, era: str) -> None:
    served = await serve(choose_task=True)
    async with (
        connected(f"{served.url}/mcp", era=era) as client,
        connected(f"{served.url}/mcp", era=era) as other,
    ):
        names = ["start_session", "increment_counter", "get_counter_value"]
        assert [listed.name for listed in (await client.list_tools()).tools] == names
        assert error_of(await client.call_tool("get_counter_value"))["code"] == "not_found"
        started = (await client.call_tool("start_session")).structured_content
        assert "add 8" in started["input"]
        assert "expected_count" not in json.dumps(started)
        await client.call_tool("increment_counter", {"count": 100})
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 117}
        assert error_of(await other.call_tool("get_counter_value"))["code"] == "not_found"
        own = (await other.call_tool("start_session", {"row": ROW})).structured_content
        assert (own["input"], own["session_id"] == started["session_id"]) == ("count", False)
        assert (await other.call_tool("get_counter_value")).structured_content == {"count": 3}
        assert error_of(await client.call_tool("start_session", {"task": 2}))["code"] == "conflict"
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 117}


async def test_a_model_does_not_choose_its_own_task(served: Any) -> None:
    async with connected(f"{served.url}/mcp") as client:
        start = (await client.list_tools()).tools[0]
        assert (start.name, start.input_schema["properties"]) == ("start_session", {})
        for choice in ({"row": ROW}, {"task": 1}):
            assert error_of(await client.call_tool("start_session", choice))["code"] == "invalid_arguments"
        started = (await client.call_tool("start_session")).structured_content
        examples = example_file(CounterEnvironment)
        assert examples is not None
        first = read_tasks(examples, CounterEnvironment())[0]
        assert started["input"] == first["responses_create_params"]["input"]


async def rootless(served: Any, name: str, meta: Any = None, **arguments: Any) -> Any:
    """The result of a call by a client of the newest protocol that keeps no cookies."""
    served.client.cookie_jar.clear()
    era = {"io.modelcontextprotocol/protocolVersion": ERAS[1], "io.modelcontextprotocol/clientCapabilities": {}}
    call = message("tools/call", name=name, arguments=arguments, _meta={**era, **(meta or {})})
    headers = {"MCP-Protocol-Version": ERAS[1], "Mcp-Method": "tools/call", "Mcp-Name": name}
    status, reply = await post(served, call, headers)
    assert status == 200
    return reply["result"].get("structuredContent") or json.loads(reply["result"]["content"][0]["text"])


async def test_a_client_without_headers_and_cookies_gives_the_handle_of_its_session(
    serve: Any, shared_url: str
) -> None:
    one, other = await serve(store=shared_url), await serve(store=shared_url)
    first, second = [(await rootless(one, "start_session"))["session"] for _ in range(2)]
    await rootless(one, "increment_counter", session=first, count=1)
    await rootless(other, "increment_counter", {"stateroom/session": second}, count=2)
    assert await rootless(other, "get_counter_value", session=first) == {"count": 18}
    assert await rootless(one, "get_counter_value", session=second) == {"count": 19}
    token = (await seeded(one))[HEADER]
    assert await rootless(one, "get_counter_value", session=token) == {"count": 3}
    for wrong in (None, "", f"{first}x", second.split(".")[0], 7, "\ud83d", first.replace(".", "", 1)):
        given = {} if wrong is None else {"session": wrong}
        assert (await rootless(one, "get_counter_value", **given))["error"]["code"] == "not_found", wrong


async def test_the_handle_of_a_session_gives_access_to_its_tools_only(served: Any) -> None:
    handle = (await rootless(served, "start_session"))["session"]
    for path in ("verify", "get_counter_value", "close_session"):
        cookie = {"Cookie": f"stateroom_counter={handle}"}
        assert (await served.post(f"/{path}", {**ROW, "response": {}}, headers=cookie))[0] == 401
    assert (await post(served, message("tools/call", name="get_counter_value"), {HEADER: handle}))[0] == 401


@pytest.mark.parametrize("era", ERAS)
async def test_tools_ask_for_a_handle_only_where_the_client_must_give_it(served: Any, era: str) -> None:
    async with connected(f"{served.url}/mcp", era=era) as client:
        before = (await client.list_tools()).tools
        await client.call_tool("start_session")
        assert (await client.list_tools(cache_mode="bypass")).tools == before
    takes = [listed.name for listed in before if "session" in listed.input_schema.get("required", ())]
    assert takes == ([] if era == "legacy" else ["increment_counter", "get_counter_value"])
    async with connected(f"{served.url}/mcp", await seeded(served), era) as client:
        listed = (await client.list_tools()).tools
    assert not any("session" in each.input_schema["properties"] for each in listed)


PROGRAM = """
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
(async () => {
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[1])));
  const call = async (name, given) => (await client.callTool({ name, arguments: given })).structuredContent;
  const { session } = await call("start_session", {});
  await call("increment_counter", { session, count: 1 });
  const value = await call("get_counter_value", { session });
  console.log(JSON.stringify({ version: client.getNegotiatedProtocolVersion(), value }));
  await client.close();
})();
"""


@pytest.mark.node
async def test_the_typescript_client_plays_an_episode(served: Any) -> None:
    node = await asyncio.create_subprocess_exec(
        *("node", "-e", PROGRAM, f"{served.url}/mcp"),
        env={**os.environ, "NODE_PATH": str(NODE / "node_modules")},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await asyncio.wait_for(node.communicate(), PATIENCE)
    assert json.loads(printed) == {"version": ERAS[1], "value": {"count": 18}}


async def test_a_connection_keeps_its_session_without_cookies_on_any_worker(serve: Any, shared_url: str) -> None:
    workers = [await serve(store=shared_url), await serve(store=shared_url)]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    accept = {"Accept": "application/json, text/event-stream"}
    async with workers[0].client.post(
        f"{workers[0].url}/mcp", json=message("initialize", **hello), headers=accept
    ) as reply:
        connection = {"Mcp-Session-Id": reply.headers["Mcp-Session-Id"]}
    calls = [("start_session", {}), ("increment_counter", {"count": 1}), ("get_counter_value", {})] * 2
    found = []
    for number, (name, arguments) in enumerate(calls):
        worker = workers[number % 2]
        worker.client.cookie_jar.clear()
        status, reply = await post(worker, message("tools/call", name=name, arguments=arguments), connection)
        assert status == 200
        found.append(reply["result"].get("structuredContent") or json.loads(reply["result"]["content"][0]["text"]))
    assert (found[2], found[5]) == ({"count": 18}, {"count": 19})
    says(found[3]["error"]["message"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"task": 99}, "not_found"),
        ({"task": -1}, "not_found"),
        ({"task": "one"}, "invalid_arguments"),
        ({"tusk": 1}, "invalid_arguments"),
        ({"row": {"initial_count": "many"}}, "invalid_task"),
    ],
)
async def test_a_session_that_cannot_start_says_why(serve: Any, arguments: dict[str, Any], code: str) -> None:
    served = await serve(choose_task=True)
    async with connected(f"{served.url}/mcp") as client:
        assert error_of(await client.call_tool("start_session", arguments))["code"] == code
        assert error_of(await client.call_tool("get_counter_value"))["code"] == "not_found"


async def test_an_environment_without_examples_starts_with_an_empty_row(desk: Any) -> None:
    async with connected(f"{desk.url}/mcp") as client:
        assert not (await client.call_tool("start_session")).is_error
        assert text_of(await client.call_tool("read")) == "[]"


@pytest.mark.parametrize("era", ERAS)
async def test_a_forged_token_is_refused(serve: Any, era: str) -> None:
    served = await serve()
    token = (await seeded(served))[HEADER]
    other = (await seeded(served))[HEADER]
    session, issued, signature = token.split(".")
    foreign = await seeded(await serve(secrets=("another secret, no better",)))
    call = message("tools/call", name="increment_counter", arguments={"count": 1})
    forgeries = ["", session, f"{other.split('.')[0]}.{issued}.{signature}", f"{token}x", foreign[HEADER], "é"]
    for forgery in forgeries:
        status, reply = await post(served, call, {HEADER: forgery})
        assert (status, reply["error"]["data"]) == (401, {"code": "unauthorized"}), forgery
    async with connected(f"{served.url}/mcp", {HEADER: f"{token}x"}, era) as client:
        with pytest.raises(MCPError, match="invalid session token"):
            await client.call_tool("increment_counter", {"count": 1})
    async with connected(f"{served.url}/mcp", {HEADER: token}, era) as client:
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 3}


async def test_a_cookie_is_no_token_here_and_starts_no_session(served: Any) -> None:
    assert (await served.post("/seed_session", ROW))[0] == 200
    assert len(served.client.cookie_jar) == 1
    for name in ("get_counter_value", "start_session"):
        assert (await post(served, message("tools/call", name=name)))[0] == 401


async def test_with_a_token_only_tools_can_be_called_and_no_other_session_started(served: Any) -> None:
    names = ("seed_session", "start_session", "verify", "close_session", "reset", "mcp", "admin", "__init__", "x y", "")
    async with connected(f"{served.url}/mcp", await seeded(served)) as client:
        for name in names:
            failed = error_of(await client.call_tool(name, {"resources_session_id": "x", **ROW}))
            assert failed["code"] == "unknown_tool"
            assert "get_counter_value" in failed["message"]
        assert (await client.call_tool("get_counter_value")).structured_content == {"count": 3}


async def test_a_stateless_environment_needs_no_token(serve: Any) -> None:
    served = await serve(WeatherEnvironment())
    async with connected(f"{served.url}/mcp") as client:
        told = await client.call_tool("get_weather", {"city": "Lima"})
        assert told.structured_content["city"] == "Lima"
    async with connected(f"{served.url}/mcp", await seeded(served, {"responses_create_params": {}})) as client:
        assert (await client.call_tool("get_weather", {"city": "Lima"})).content == told.content
    assert (await post(served, message("tools/call", name="get_weather"), {HEADER: "forged"}))[0] == 401


async def test_environments_of_one_server_are_apart(serve: Any) -> None:
    served = await serve(CounterEnvironment(), ExtractionEnvironment(), WeatherEnvironment())
    counter = await seeded(served, prefix="/counter")
    async with (
        connected(f"{served.url}/counter/mcp", counter) as counting,
        connected(f"{served.url}/extraction/mcp", counter) as extracting,
        connected(f"{served.url}/weather/mcp") as asking,
    ):
        assert {listed.name for listed in (await counting.list_tools()).tools} == {
            "increment_counter",
            "get_counter_value",
        }
        assert [listed.name for listed in (await asking.list_tools()).tools] == ["get_weather"]
        assert (await counting.call_tool("get_counter_value")).structured_content == {"count": 3}
        assert error_of(await counting.call_tool("get_weather", {"city": "Lima"}))["code"] == "unknown_tool"
        assert not (await asking.call_tool("get_weather", {"city": "Lima"})).is_error
        with pytest.raises(MCPError, match="invalid session token"):
            await extracting.call_tool("get_synonym_value", {"synonym": "a"})
    assert (await post(served, message("tools/list")))[0] == 404


async def test_what_is_no_message_is_refused(served: Any) -> None:
    for method in ("GET", "DELETE", "PUT"):
        async with served.client.request(method, f"{served.url}/mcp", headers={"Accept": "text/event-stream"}) as reply:
            assert (reply.status, reply.headers["Allow"]) == (405, "POST")
            assert (await reply.json())["error"]["code"] == "method_not_allowed"
    status, reply = await post(served, message("tools/list"), path="/mcp/tools")
    assert status == 404
    says(reply["error"]["message"])
    assert (await post(served, [message("tools/list")]))[0] == 400
    status, reply = await post(served, message("resources/list"))
    assert reply["error"]["message"] == "Method not found"
    version = {"io.modelcontextprotocol/protocolVersion": ERAS[1], "io.modelcontextprotocol/clientCapabilities": {}}
    listen = message("subscriptions/listen", notifications={}, _meta=version)
    streaming = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": ERAS[1]}
    status, reply = await post(served, listen, {**streaming, "Mcp-Method": "subscriptions/listen"})
    assert (status, reply["error"]["message"]) == (404, "Method not found")  # there is nothing to stream


async def test_the_sdk_minds_no_host_name(serve: Any) -> None:
    served = await serve(hosts=None)
    headers = {"Host": "gym.example:8000", "Origin": "https://gym.example"}
    assert (await post(served, message("tools/list"), headers))[0] == 200


async def test_a_body_may_be_as_large_as_elsewhere(serve: Any) -> None:
    served = await serve(WeatherEnvironment())
    city = "x" * 5 * 2**20  # more than the SDK takes by itself
    async with connected(f"{served.url}/mcp") as client:
        told = await client.call_tool("get_weather", {"city": city})
        assert told.structured_content["city"] == city
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n")
    writer.write(b"content-type: application/json\r\n")
    writer.write(b"content-length: %d\r\n\r\n{" % (17 * 2**20))
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    writer.close()


def test_a_worker_that_is_ready_has_loaded_the_sdk() -> None:
    """Neither the import nor the SDK's own first steps are left to the first request."""
    program = (
        "import asyncio, sys\n"
        "from stateroom.gallery import CounterEnvironment\n"
        "from stateroom.server import Application, ApplicationOptions\n"
        "async def main():\n"
        "    app = Application([CounterEnvironment()], ApplicationOptions(secrets=('a secret for this test',)))\n"
        "    before = 'mcp' in sys.modules\n"
        "    await app.start()\n"
        "    print(before, 'mcp' in sys.modules)\n"
        "    await app.stop()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "False True\n"


async def test_without_the_sdk_the_reply_says_what_to_install(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mcp", "mcp_types")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "stateroom.server.mcp", raising=False)
    served = await serve()
    headers = await seeded(served)
    for _ in range(2):
        status, reply = await post(served, message("tools/list"), headers)
        assert (status, reply["error"]["code"]) == (501, "not_installed")
        says(reply["error"]["message"])
