"""The runner on servers that are not ours: written from the protocol alone, with manners of their own."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stateroom.errors import BadTask, NotFound, ServerUnavailable
from stateroom.gallery import CounterEnvironment
from stateroom.model import Answer, Item, Model, ModelSource, Request, Scripted, function_call, message, outputs_of
from stateroom.pauses import Pauses
from stateroom.rollout import RemoteEnvironment, Report, RunFiles, RunPlan, client, run
from stateroom.rollout.remote import remote_backend
from tests.messages import raises, says
from tests.patience import PATIENCE
from tests.plans import make_run
from tests.rows import rows

REFERENCE = CounterEnvironment.policies["reference"]


Start = Callable[[web.Application], Awaitable[str]]


class Stranger:
    """A counter that keeps its sessions in a dict, and knows them by a cookie that changes with each reply."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.cookies: dict[str, str] = {}
        self.requests: list[tuple[str, str | None]] = []
        """The path and the call id of each."""
        self.troubles: list[Any] = []
        """What happens instead of a reply to a tool call: a reply, or None for a line that is cut off."""
        self.verdict: dict[str, Any] = {"reward": 1.0, "accuracy": 0.5, "seen": ["a"]}
        self.seeded: dict[str, Any] = {}
        self.url = ""

    def paths(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.requests)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.noted])
        app.router.add_get("/", self.root)
        for name in ("seed_session", "increment_counter", "get_counter_value", "verify"):
            app.router.add_post(f"/{name}", partial(self.post, name))
        return app

    async def post(self, name: str, request: web.Request) -> web.Response:
        found: web.Response = await getattr(self, name)(request)
        return found

    @web.middleware
    async def noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.path, request.headers.get("Idempotency-Key")))
        return await handler(request)

    async def root(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def seed_session(self, request: web.Request) -> web.Response:
        assert "Cookie" not in request.headers
        row = await request.json()
        name = f"s{len(self.counts)}"
        self.counts[name] = row["initial_count"]
        return self.reply(name, web.json_response(self.seeded))

    def session(self, request: web.Request) -> str:
        token = request.headers["Cookie"].removeprefix('other=1; session="').removesuffix('=="')
        name = token.partition("-")[0]
        assert self.cookies[name] == token  # the newest one, and in its own letters
        return name

    def reply(self, name: str, reply: web.Response) -> web.Response:
        token = self.cookies[name] = f"{name}-{len(self.requests)}"
        reply.headers.add("Set-Cookie", "other=1")
        reply.headers.add("Set-Cookie", f'session="{token}=="; path=/; HttpOnly')
        return reply

    async def increment_counter(self, request: web.Request) -> web.Response:
        name = self.session(request)
        arguments = await request.json()
        if not isinstance(arguments.get("count"), int):
            detail = [{"loc": ["body", "count"], "msg": "Field required"}]
            return self.reply(name, web.json_response({"detail": detail}, status=422))
        self.counts[name] += arguments["count"]
        if self.troubles:
            trouble = self.troubles.pop(0)
            if trouble is None:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return self.reply(name, trouble)
        return self.reply(name, web.Response(text='{ "success":   true }'))

    async def get_counter_value(self, request: web.Request) -> web.Response:
        name = self.session(request)
        return self.reply(name, web.json_response({"count": self.counts[name]}))

    async def verify(self, request: web.Request) -> web.Response:
        name = self.session(request)
        row = await request.json()
        row["responses_create_params"] = {"temperature": None, **row["responses_create_params"]}
        return self.reply(name, web.json_response({**row, **self.verdict}))


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts an application, and gives its URL."""
    async with AsyncExitStack() as stack:

        async def started(app: web.Application) -> str:
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return "http://{}:{}".format(*runner.addresses[0])

        yield started


@pytest.fixture
async def stranger(start: Start, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    monkeypatch.setattr(client, "PAUSES", Pauses(0.0, 0.0))
    made = Stranger()
    made.url = await start(made.app())
    return made


def plan(folder: Path, server: str, policy: Any = REFERENCE, **more: Any) -> RunPlan:
    tools = [{"type": "function", "name": name} for name in ("increment_counter", "get_counter_value", "verify")]
    asked = [{"input": f"add {n} then add 2", "tools": tools} for n in range(1, 9)]
    counts = [{"initial_count": 3, "expected_count": 5 + n} for n in range(1, 9)]
    tasks = [{"responses_create_params": input} | row for input, row in zip(asked, counts, strict=True)]
    settings: dict[str, Any] = {"model": ModelSource("some_policy", policy), "tasks": tasks} | more
    return make_run(RemoteEnvironment(), files=RunFiles(folder / "out.jsonl"), server=server, **settings)


async def play(folder: Path, stranger: Stranger, *calls: Item) -> tuple[Report, RunPlan]:
    """One episode with these calls."""
    script = Scripted([*([call] for call in calls), "done"])
    given = plan(folder, stranger.url, lambda seed: script, limit=1)
    return await run(given), given


def outputs(given: RunPlan) -> list[str]:
    (row,) = rows(given.files.rollouts)
    return [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]


ADD = function_call("increment_counter", "c", count=1)


async def test_a_run(stranger: Stranger, tmp_path: Path) -> None:
    given = plan(tmp_path, stranger.url, repeats=3)
    report = await run(given)
    assert (report.episodes, report.failed) == (24, 0)
    assert sorted(stranger.counts.values()) == sorted([*range(6, 14)] * 3)
    inputs = {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in rows(given.files.inputs)}
    for row in rows(given.files.rollouts):
        assert row.items() >= inputs[row["_ng_task_index"], row["_ng_rollout_index"]].items()
        assert (row["reward"], row["accuracy"], row["seen"], row["tool_calls"]) == (1.0, 0.5, ["a"], 3)
        assert row["response"]["output"][1]["output"] == '{ "success":   true }'
        assert "_stateroom_session" not in row
    measured = {key[5:] for key in report.metrics["agent_metrics"] if key.startswith("mean/")}
    assert measured == {"reward", "accuracy", "tool_calls", "truncated"}


async def test_what_it_says_of_a_bad_call_goes_to_the_model(stranger: Stranger, tmp_path: Path) -> None:
    stranger.troubles = [
        web.Response(status=500, text="Internal Server Error"),
        web.Response(status=503, text="Try again"),
        web.Response(status=409, body=b"caf\xe9", content_type="text/plain"),
    ]
    bad = function_call("increment_counter", "c", amount=1)
    _, given = await play(tmp_path, stranger, bad, ADD, ADD, ADD, ADD)
    assert outputs(given) == [
        '{"detail": [{"loc": ["body", "count"], "msg": "Field required"}]}',
        "Internal Server Error",
        "Try again",
        "caf\N{REPLACEMENT CHARACTER}",
        '{ "success":   true }',
    ]
    assert stranger.counts == {"s0": 7}


async def test_a_line_that_is_cut_off_is_not_taken_up_again(stranger: Stranger, tmp_path: Path) -> None:
    """It would apply the call twice."""
    stranger.troubles = [None]
    report, given = await play(tmp_path, stranger, ADD, ADD)
    (failed,) = rows(given.files.failures)
    assert report.failed == 1
    assert (failed["_ng_failure_class"], failed["_ng_failure_terminal"]) == ("server", False)
    assert failed["error"].startswith(f"ServerUnavailable: no answer from {stranger.url}/increment_counter: ")
    assert stranger.counts == {"s0": 4}
    assert "_stateroom_session" not in failed


async def test_an_episode_that_was_cut_off_starts_over(stranger: Stranger, tmp_path: Path) -> None:
    """Only a server of our own tells whether a session is the one that it was."""
    stranger.seeded = {"resources_session_id": "mine"}
    stranger.troubles = [web.Response(text="{}"), None]
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path / 'diaries.db'}", "limit": 1}
    assert (await run(plan(tmp_path, stranger.url, **settings))).failed == 1
    given = plan(tmp_path, stranger.url, **settings, resume=True)
    assert (await run(given)).failed == 0
    assert outputs(given) == ['{ "success":   true }'] * 2 + ['{"count": 6}']
    assert list(stranger.counts.values()) == [6, 3, 6]  # the one in the middle has only shown that it is another one


async def test_what_was_never_sent_is_tried_again(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = aiohttp.TCPConnector.connect
    refused: list[str] = []

    async def refused_at_first(self: Any, request: aiohttp.ClientRequest, **more: Any) -> Any:
        if request.url.path == "/increment_counter" and not refused:
            refused.append(request.url.path)
            raise aiohttp.ClientConnectorError(request.connection_key, ConnectionRefusedError("refused"))
        return await connect(self, request, **more)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", refused_at_first)
    report, _ = await play(tmp_path, stranger, ADD)
    assert (report.failed, refused, stranger.counts) == (0, ["/increment_counter"], {"s0": 4})


async def test_only_the_tools_that_are_offered_can_be_called(stranger: Stranger, tmp_path: Path) -> None:
    names = ("verify", "seed_session", "close_session", "nothing", "", "../verify", "increment_counter/")
    _, given = await play(tmp_path, stranger, *(function_call(name, "c") for name in names))
    for name, output in zip(names, outputs(given), strict=True):
        error = json.loads(output)["error"]
        assert (error["code"], repr(name) in error["message"]) == ("unknown_tool", True)
    assert [path for path, _ in stranger.requests] == ["/", "/seed_session", "/verify"]


@pytest.mark.parametrize(
    "verdict", [{}, {"reward": None}, {"reward": "1.0"}, {"reward": True}, {"reward": float("nan")}]
)
async def test_a_reward_that_is_no_number_fails_the_episode(
    stranger: Stranger, tmp_path: Path, verdict: dict[str, Any]
) -> None:
    stranger.verdict = verdict
    _, given = await play(tmp_path, stranger)
    (failed,) = rows(given.files.failures)
    says(failed["error"].partition("{")[0])
    assert (failed["_ng_failure_class"], failed["_ng_failure_terminal"]) == ("environment", True)


async def test_a_verdict_may_say_what_the_task_says(stranger: Stranger, tmp_path: Path) -> None:
    stranger.verdict = {"reward": 0.5, "initial_count": 4, "expected_count": 6, "_ng_task_index": 9, "tool_calls": 9}
    stranger.verdict["order_failure"] = False
    report, given = await play(tmp_path, stranger)
    (row,) = rows(given.files.rollouts)
    assert (row["initial_count"], row["expected_count"], row["_ng_task_index"], row["tool_calls"]) == (4, 6, 0, 0)
    assert report.metrics["agent_metrics"]["mean/initial_count"] == 4
    assert report.metrics["key_metrics"]["mean/order_failure"] == 0.0
    assert "mean/expected_count" not in report.metrics["agent_metrics"]  # nothing new


async def test_a_server_is_sent_whole_items_and_may_send_the_verdict_alone(stranger: Stranger, tmp_path: Path) -> None:
    """NeMo Gym's servers refuse a message of the assistant's without an id, as the Responses API has none."""
    judged: list[Any] = []

    async def verify(request: web.Request) -> web.Response:
        assert request.headers["Prefer"] == "return=minimal"
        judged.extend((await request.json())["response"]["output"])
        return web.json_response({"distance": 6, "reward": 0.5}, headers={"Preference-Applied": "return=minimal"})

    stranger.verify = verify  # type: ignore[method-assign]
    report, given = await play(tmp_path, stranger, ADD)
    assert [item.get("id") for item in judged] == ["fc_0", None, "msg_2"]
    (row,) = rows(given.files.rollouts)
    assert (row["reward"], row["response"]["output"]) == (0.5, judged)
    assert report.metrics["agent_metrics"]["mean/distance"] == 6


# A server that knows call ids, as ours do: it says so by the session's id in its reply to the seed.


async def test_calls_that_have_ids_are_tried_again(stranger: Stranger, tmp_path: Path) -> None:
    stranger.seeded = {"session_id": "a"}
    stranger.troubles = [web.Response(status=502), None, web.Response(status=503)]
    _, given = await play(tmp_path, stranger, ADD, ADD)
    calls = [call_id for path, call_id in stranger.requests if path == "/increment_counter"]
    assert calls == ["0.0.0"] * 4 + ["0.1.0"]
    assert rows(given.files.rollouts)[0]["_stateroom_session"] == "a"
    assert stranger.paths("/close_session") == 1  # which it does not know


@pytest.mark.parametrize(
    ("status", "code", "tries", "terminal"),
    [
        (503, "busy", 4, False),
        (503, "store_unavailable", 4, False),
        (502, None, 4, False),
        (504, None, 4, False),
        (500, "internal_error", 1, True),
        (500, None, 1, True),
        (401, "unauthorized", 1, True),
        (403, None, 1, True),
        (409, "conflict", 1, True),
        (409, "session_sealed", 1, True),
        (410, "session_expired", 1, True),
    ],
)
async def test_trouble_that_stays_ends_the_episode(
    stranger: Stranger, tmp_path: Path, status: int, code: str | None, tries: int, terminal: bool
) -> None:
    body = json.dumps({"error": {"code": code, "message": "so it is"}}) if code else "<h1>so it is</h1>"
    stranger.seeded = {"session_id": "a"}
    stranger.troubles = [web.Response(status=status, text=body) for _ in range(9)]
    _, given = await play(tmp_path, stranger, ADD)
    (failed,) = rows(given.files.failures)
    assert stranger.paths("/increment_counter") == tries
    kind = "ServerFailed" if terminal else "ServerUnavailable"
    told = f"{code}: so it is" if code else "<h1>so it is</h1>"
    assert failed["error"] == f"{kind}: increment_counter got {status} {told}"
    assert failed["_ng_failure_terminal"] is terminal
    assert failed["_stateroom_session"] == "a"


@pytest.mark.parametrize(
    ("status", "code"),
    [(504, "timeout"), (500, "tool_failed"), (400, "tool_error"), (409, "unknown_outcome"), (413, "too_large")],
)
async def test_what_a_tool_failed_of_goes_to_the_model(
    stranger: Stranger, tmp_path: Path, status: int, code: str
) -> None:
    body = json.dumps({"error": {"code": code, "message": "so it is"}}, indent=1)
    stranger.seeded = {"session_id": "a"}
    stranger.troubles = [web.Response(status=status, text=body)]
    _, given = await play(tmp_path, stranger, ADD)
    assert outputs(given) == [body]
    assert stranger.paths("/increment_counter") == 1


@pytest.mark.parametrize("seconds", [20, 3600])
async def test_it_is_asked_again_when_it_wants_to_be_but_nobody_waits_for_ever(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    stranger.seeded = {"session_id": "a"}
    stranger.troubles = [web.Response(status=503, headers={"Retry-After": str(seconds)})]
    _, given = await play(tmp_path, stranger, ADD)
    if seconds == 20:
        assert max(pauses) >= 20
        assert outputs(given) == ['{ "success":   true }']
    else:
        assert rows(given.files.failures)[0]["error"] == "ServerUnavailable: increment_counter got 503"
        assert stranger.paths("/increment_counter") == 1


async def test_a_request_may_take_so_long(stranger: Stranger) -> None:
    async def wait(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    stranger.increment_counter = wait  # type: ignore[method-assign]
    async with remote_backend(stranger.url, CounterEnvironment(), 1, timeout=1) as backend:
        row = {"initial_count": 0, "_ng_task_index": 0, "_ng_rollout_index": 0}
        session = await backend.seed(row, seed=0, began=0.0)
        with raises(ServerUnavailable):
            async with asyncio.timeout(PATIENCE):
                await session.call("increment_counter", {"count": 1}, call_id="1")


# No server.


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:1", "{}/elsewhere", "{}/page", "{}?a=b"),
        *("127.0.0.1:8000", "localhost", "http://", "http://[::1", "http://h:99999", "ftp://127.0.0.1"),
    ],
)
async def test_a_wrong_address_is_told_before_a_file_is_written(
    stranger: Stranger, start: Start, tmp_path: Path, url: str
) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<h1>Welcome</h1>", content_type="text/html")

    app = stranger.app()
    app.router.add_get("/page/", page)
    root = await start(app)
    with raises((NotFound, ServerUnavailable)):
        await run(plan(tmp_path, url.format(root)))
    assert os.listdir(tmp_path) == []


async def test_without_the_client_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in ("remote", "client"):
        monkeypatch.delitem(sys.modules, f"stateroom.rollout.{name}")
    with raises(NotFound):
        await run(plan(tmp_path, "http://127.0.0.1:1"))
    assert os.listdir(tmp_path) == []


# Gymnasium-style servers.


class Steps:
    """A game with `/reset` and `/step` alone: guess the number that the first observation tells."""

    def __init__(self, *, ends_with_call: bool = False) -> None:
        self.ends_with_call = ends_with_call
        self.steps: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/openapi.json", self.described)
        app.router.add_post("/reset", self.reset)
        app.router.add_post("/step", self.step)
        return app

    async def described(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": {"/reset": {}, "/step": {}, "/aggregate_metrics": {}}})

    async def reset(self, request: web.Request) -> web.Response:
        row = await request.json()
        reply = web.json_response({"observation": f"it is {row['initial_count']}", "info": {}})
        reply.headers.add("Set-Cookie", f"session={row['initial_count']}; path=/")
        return reply

    async def step(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.steps.append(body)
        assert request.headers["Cookie"] == f"session={body['initial_count']}"
        [item] = body["response"]["output"]
        assert item["id"]
        stepped: dict[str, Any] = {"observation": None, "reward": 0.25, "info": {}}
        stepped |= {"terminated": False, "truncated": False}
        if item["type"] == "function_call":
            stepped["info"] = {"tool_outputs": [{"call_id": item["call_id"], "output": "warm"}]}
            stepped |= {"observation": "go on", "terminated": self.ends_with_call}
        elif item["content"][0]["text"] == f"{body['initial_count']}":
            stepped |= {"reward": 1.0, "terminated": True}
        else:
            stepped["observation"] = "no"
        return web.json_response(stepped)


class Guesser(Model):
    """Tries a tool, then says something wrong, then what it was told."""

    name = "guesser"

    async def answer(self, request: Request) -> Answer:
        said = [item for item in request.items if item.get("role") == "assistant"]
        if not outputs_of([*request.items]):
            return Answer([function_call("try_it", "c", number=1)])
        return Answer([message(request.settings["instructions"].split()[-1] if said else "what?")])


@pytest.mark.parametrize("ends_with_call", [False, True])
async def test_a_run_on_a_gymnasium_style_server(start: Start, tmp_path: Path, ends_with_call: bool) -> None:
    game = Steps(ends_with_call=ends_with_call)
    source = ModelSource("guesser", lambda seed: Guesser())
    tasks = [{"responses_create_params": {"input": "guess"}, "initial_count": number} for number in (3, 4)]
    given = plan(tmp_path, await start(game.app()), model=source, tasks=tasks)
    report = await run(given)
    assert (report.episodes, report.failed) == (2, 0)
    for row in rows(given.files.rollouts):
        said = [item.get("output") or item.get("content") for item in row["response"]["output"]]
        assert said[1] == "warm\n\ngo on"
        assert row["reward"] == (0.25 if ends_with_call else 1.5)
        assert ("no" in said) is not ends_with_call
    assert len(game.steps) == (2 if ends_with_call else 6)


async def test_rows_without_tools_are_refused_where_nobody_knows_them(stranger: Stranger, tmp_path: Path) -> None:
    tasks = [{"responses_create_params": {"input": "add 1"}, "initial_count": 3}]
    with raises(BadTask):
        await run(plan(tmp_path, stranger.url, tasks=tasks))
    assert stranger.paths("/seed_session") == 0
