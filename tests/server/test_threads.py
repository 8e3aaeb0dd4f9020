"""Threads over HTTP, by a real client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stateroom.errors import DefinitionError
from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from stateroom.model import text_of
from stateroom.server.threads import run_events
from tests.environments import PurseEnvironment
from tests.messages import raises
from tests.server.conftest import until

MODELS = Path(__file__).with_name("thread_models.py")
COUNTER = {"environment": "counter", "task": {"initial_count": 3, "expected_count": 9}}
ENDPOINTS: list[tuple[str, str, Any]] = [
    *(("GET", "", None), ("GET", "/items", None), ("DELETE", "", None)),
    *(("POST", "/messages", {"message": "x"}), ("POST", "/fork", {}), ("POST", "/cancel", {})),
]
"""What a thread answers, model or no model."""

ADMIN = {"authorization": "Bearer the admin's token"}


def model(name: str) -> str:
    return f"{MODELS}:{name}"


class Talker:
    """A client that has the token of one thread, or of none."""

    def __init__(self, served: Any, thread: dict[str, Any] | None = None, token: str | None = None) -> None:
        self.served = served
        self.thread = thread or {}
        self.token = token or self.thread.get("token")
        self.path = f"/threads/{self.thread['id']}" if thread else "/threads"

    def request(self, method: str, rest: str = "", body: Any = None, **headers: str) -> Any:
        if self.token is not None:
            headers.setdefault("authorization", f"Bearer {self.token}")
        given = {} if body is None else {"json": body}
        return self.served.client.request(method, f"{self.served.url}{self.path}{rest}", headers=headers, **given)

    async def ask(self, method: str, rest: str = "", body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.request(method, rest, body, **headers) as reply:
            return reply.status, await reply.json()

    async def good(self, method: str, rest: str = "", body: Any = None, **headers: str) -> Any:
        status, reply = await self.ask(method, rest, body, **headers)
        assert status == 200, reply
        return reply

    async def refused(self, method: str, rest: str = "", body: Any = None, **headers: str) -> tuple[int, str]:
        status, reply = await self.ask(method, rest, body, **headers)
        return status, reply["error"]["code"]

    async def say(self, message: Any) -> Any:
        return await self.good("POST", "/messages", {"message": message})

    async def run(self) -> Any:
        return await self.good("POST", "/run", {})

    async def texts(self) -> list[str]:
        return [text_of(item) for item in (await self.good("GET", "/items"))["items"]]


async def created(served: Any, **body: Any) -> Talker:
    return Talker(served, await Talker(served).good("POST", "", body))


async def test_a_conversation(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, model=model("Echo"))
    talker = await created(served, user="ann", metadata={"topic": "ships"}, instructions="Be brief.")
    shown = talker.thread
    assert (shown["environment"], shown["user"], shown["metadata"]) == ("thread", "ann", {"topic": "ships"})
    assert (shown["phase"], shown["revision"], shown["parent"]) == ("idle", 1, None)
    assert await talker.say("hello") == {"phase": "planning", "question": None}
    done = await talker.run()
    assert [text_of(item) for item in done.pop("output")] == ["2: hello"]
    assert done == {"status": "completed", "reason": None, "question": None, "usage": None}
    await talker.good("POST", "/messages", {"message": {"role": "user", "content": "bye"}, "user": "bob"})
    await talker.run()
    assert await talker.texts() == ["Be brief.", "hello", "2: hello", "bye", "4: bye"]
    first = await talker.good("GET", "/items?limit=2")
    assert (len(first["items"]), first["revisions"], first["next"]) == (2, [1, 2], 2)
    rest = await talker.good("GET", f"/items?after={first['next']}")
    assert (len(rest["items"]), rest["items"][1]["name"], rest["next"]) == (3, "bob", None)
    assert (await talker.good("GET"))["phase"] == "done"


async def test_a_thread_of_an_environment_has_its_tools(serve: Any, store_url: str) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), store=store_url, model="reference")
    talker = await created(served, **COUNTER)
    await talker.say("add 4, then add 2")
    done = await talker.run()
    assert done["status"] == "completed"
    assert [item["name"] for item in done["output"] if item["type"] == "function_call"].count("increment_counter") == 2
    assert (await served.services.environments["counter"].sessions.open(talker.thread["id"])).state.value == 9
    plain = await created(served)
    await plain.say("hello")
    status, refused = await plain.ask("POST", "/run", {})
    assert (status, refused["error"]["code"]) == (404, "not_found")
    assert "the model reference, which cannot act in thread" in refused["error"]["message"]


async def test_without_a_model_there_are_threads_that_nobody_answers_in(serve: Any) -> None:
    talker = await created(await serve())
    await talker.say("hello")
    status, refused = await talker.ask("POST", "/run", {})
    assert (status, refused["error"]["code"]) == (404, "not_found")
    assert "started without a model" in refused["error"]["message"]
    assert await talker.texts() == ["hello"]


async def test_the_model_is_shown_as_many_tokens_as_it_may(serve: Any) -> None:
    served = await serve(model=model("Echo"), context_tokens=150)
    talker = await created(served)
    for number in range(30):
        await talker.say(f"message {number}")
        done = await talker.run()
    assert int(text_of(done["output"][0]).partition(":")[0]) < 20
    assert len(await talker.texts()) == 60


async def test_a_fork_has_a_token_of_its_own(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, model=model("Echo"))
    talker = await created(served)
    await talker.say("one")
    await talker.run()
    fork = Talker(served, await talker.good("POST", "/fork", {}))
    early = Talker(served, await talker.good("POST", "/fork", {"at": 2.0}))  # which is an integer in JSON
    assert fork.thread["parent"] == [talker.thread["id"], 3]
    assert early.thread["phase"] == "planning"
    await fork.say("two")
    await fork.run()
    assert (await talker.texts(), await fork.texts()) == (["one", "1: one"], ["one", "1: one", "two", "3: two"])
    assert await talker.refused("POST", "/fork", {"at": 99}) == (404, "unknown_revision")
    stranger = Talker(served, fork.thread, token=talker.token)
    assert await stranger.refused("GET") == (401, "unauthorized")


async def test_a_deleted_thread_is_gone(stored: Any) -> None:
    talker = await created(stored)
    live = stored.services.count.live
    assert await talker.good("DELETE") == {"deleted": talker.thread["id"]}
    assert stored.services.count.live == live - 1
    for method, rest, body in ENDPOINTS:
        assert await talker.refused(method, rest, body) == (410, "unknown_session")


async def events(reply: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream."""
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    text = ""
    async for chunk in reply.content:
        text += chunk.decode()
        while "\n\n" in text:
            event, _, text = text.partition("\n\n")
            kind, data = (line.partition(": ")[2] for line in event.split("\n"))
            yield kind, json.loads(data)


STREAM = {"accept": "text/event-stream"}


async def test_a_run_can_be_watched(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, model=model("Adds"))
    talker = await created(served, **COUNTER)
    await talker.say("4 2")
    async with talker.request("POST", "/run", {}, **STREAM) as reply:
        told = [event async for event in events(reply)]
    assert told[-1] == ("end", {"status": "completed", "reason": None, "question": None, "usage": None})
    items = [data for kind, data in told if kind == "item"]
    assert len(told) == len(items) + 1
    assert items == (await talker.good("GET", "/items"))["items"][1:]
    assert [item["type"] for item in items] == [*("function_call", "function_call_output") * 2, "message"]


@pytest.fixture
async def slow(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talker:
    """A thread of a model that answers when it is let; the first time at once."""
    monkeypatch.setenv("STATEROOM_TEST_FOLDER", str(tmp_path))
    talker = await created(await serve(model=model("Waits")), **COUNTER)
    await talker.say("4")
    (tmp_path / "answer-0").touch()
    return talker


async def test_items_come_before_the_run_has_ended(slow: Talker, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stateroom.server.api.HEARTBEAT_SECONDS", 0.05)
    async with slow.request("POST", "/run", {}, **STREAM) as reply:
        for kind in (b"function_call", b"function_call_output"):
            assert (await reply.content.readuntil(b"\n\n")).startswith(b'event: item\ndata: {"type":"%s"' % kind)
        assert await reply.content.readuntil(b"\n\n") == b": still here\n\n"
        (tmp_path / "answer-1").touch()
        assert b"event: end" in await reply.content.read()


async def test_a_client_that_leaves_does_not_stop_the_run(slow: Talker, tmp_path: Path) -> None:
    async with slow.request("POST", "/run", {}, **STREAM) as reply:
        await reply.content.readuntil(b"\n\n")
        reply.close()
    assert await slow.refused("POST", "/run", {}) == (503, "session_leased")
    (tmp_path / "answer-1").touch()

    async def done() -> bool:
        return (await slow.good("GET"))["phase"] == "done"

    await until(done)
    assert (await slow.texts())[-1] == "Done."


async def test_a_run_that_fails_says_so_as_far_as_it_can(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, model=model("Fails"))
    talker = await created(served, **COUNTER)
    await talker.say("fail")
    for headers in ({}, STREAM):
        status, refused = await talker.ask("POST", "/run", {}, **headers)
        assert (status, refused["error"]["code"]) == (502, "model_failed")
        assert "out of order" in refused["error"]["message"]
    await talker.say("4 2")
    async with talker.request("POST", "/run", {}, **STREAM) as reply:
        told = [event async for event in events(reply)]
    assert [kind for kind, _ in told] == ["item", "item", "error"]
    assert told[-1][1]["error"]["code"] == "model_failed"
    assert (await talker.good("GET"))["phase"] == "failed"


async def test_a_run_ends_when_the_server_cannot_wait_for_it() -> None:
    ended = asyncio.Event()

    async def run(tell: Any) -> bytes:
        await tell([{"type": "message"}])
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.set()

    sent = asyncio.Event()
    response = await run_events(run, "POST /run")
    scope = {"type": "http", "method": "POST"}
    sending = asyncio.create_task(response(scope, receive, send))
    await sent.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert ended.is_set()


@pytest.fixture
async def waiting(serve: Any, store_url: str) -> Talker:
    """A thread whose agent asks something."""
    served = await serve(PurseEnvironment(), store=store_url, model=model("Adds"))
    talker = await created(served, environment="purse")
    await talker.say("5")
    done = await talker.run()
    assert (done["status"], done["question"]) == ("waiting", "Spend 5?")
    return talker


async def spent(talker: Talker) -> int:
    session = await talker.served.services.environments["purse"].sessions.open(talker.thread["id"])
    return session.state.spent


async def test_what_a_waiting_agent_is_told_is_its_answer(waiting: Talker) -> None:
    assert (await waiting.good("GET"))["question"] == "Spend 5?"
    assert (await waiting.say("yes"))["phase"] == "executing"
    assert (await waiting.run())["status"] == "completed"
    assert await spent(waiting) == 5


async def test_a_waiting_agent_can_be_answered_and_cancelled_by_whoever_runs_the_server(waiting: Talker) -> None:
    served, session = waiting.served, waiting.thread["id"]
    twin = Talker(served, await waiting.good("POST", "/fork", {}))
    admin = Talker(served)
    admin.path = "/admin/sessions"
    told = await admin.good("POST", f"/{session}/answer", {"input": "yes"})
    assert told == {"phase": "executing", "question": None}
    assert await admin.refused("POST", f"/{session}/answer", {"input": "yes"}) == (409, "invalid_move")
    assert await admin.refused("POST", f"/{session}/answer", {}) == (422, "invalid_arguments")
    assert (await waiting.run())["status"] == "completed"
    told = await admin.good("POST", f"/{twin.thread['id']}/cancel", {"reason": "enough"})
    assert told == {"phase": "cancelled", "question": None}
    assert await admin.refused("POST", f"/{twin.thread['id']}/cancel", {}) == (409, "invalid_move")
    assert await admin.refused("POST", "/nobody/cancel", {}) == (410, "unknown_session")
    assert await admin.refused("POST", "/nobody/answer", {"input": 1}) == (410, "unknown_session")
    assert (await spent(waiting), await spent(twin)) == (5, 0)


async def test_an_answer_to_an_older_question_is_refused(waiting: Talker) -> None:
    """The agent may have been answered, and ask something else by now."""
    admin = Talker(waiting.served)
    admin.path = "/admin/sessions"
    place = f"/{waiting.thread['id']}"
    asked = (await admin.good("GET", f"{place}/log?kinds=message"))["entries"][-1]["agent"]["said"]
    refused = await admin.refused("POST", f"{place}/answer", {"input": "yes", "to": asked - 1})
    assert refused == (409, "conflict")
    assert (await admin.good("POST", f"{place}/answer", {"input": "yes", "to": asked}))["phase"] == "executing"
    assert await admin.refused("POST", f"{place}/answer", {"input": "no", "to": asked}) == (409, "conflict")
    assert (await waiting.run())["status"] == "completed"
    assert await spent(waiting) == 5


async def test_a_thread_that_somebody_runs_can_be_cancelled_and_nothing_else(slow: Talker, tmp_path: Path) -> None:
    (tmp_path / "answer-0").unlink()
    running = asyncio.create_task(slow.run())
    await until((tmp_path / "asked-0").exists)
    for headers in ({}, STREAM):
        assert await slow.refused("POST", "/run", {}, **headers) == (503, "session_leased")
    assert await slow.refused("POST", "/messages", {"message": "2"}) == (503, "session_leased")
    assert (await slow.good("POST", "/cancel", {"reason": "enough"}))["phase"] == "cancelled"
    for done in (0, 1):
        (tmp_path / f"answer-{done}").touch()
    assert (await running)["status"] == "cancelled"
    assert await slow.refused("POST", "/cancel", {}) == (409, "invalid_move")
    await slow.say("2")
    assert (await slow.run())["status"] == "completed"
    counter = slow.served.services.environments["counter"].sessions
    assert (await counter.open(slow.thread["id"])).state.value == 5


async def test_a_thread_is_reached_only_with_its_own_token(serve: Any) -> None:
    now = 1_000_000.0
    served = await serve(now=lambda: now, ttl=1000.0, model=model("Echo"), admin_token="the admin's token")
    talker, other = await created(served), await created(served)
    seeded = await served.post("/seed_session", COUNTER["task"])
    headers = seeded[1]["mcp"]["headers"]
    wrong = [
        *(None, "", "x", "x.y.z", f"{talker.token}x", other.token, "the admin's token"),
        headers["X-NeMo-Gym-Session-Token"],
    ]
    for token in wrong:
        stranger = Talker(served, talker.thread, token=token)
        stranger.token = token
        for method, rest, body in [*ENDPOINTS, ("POST", "/run", {})]:
            assert await stranger.refused(method, rest, body) == (401, "unauthorized"), (token, rest)
    assert (await talker.good("GET"))["revision"] == 1
    now += 1000.0 + 25 * 3600
    assert await talker.refused("GET") == (401, "unauthorized")


async def test_a_session_is_not_reached_with_the_token_of_its_thread(served: Any) -> None:
    talker = await created(served, **COUNTER)
    signer = served.services.environments["counter"].signer
    for token, status in ((talker.token, 401), (signer.sign(talker.thread["id"]).decode(), 200)):
        headers = {"cookie": f"stateroom_counter={token}"}
        assert (await served.post("/increment_counter", {"count": 1}, headers=headers))[0] == status
        served.client.cookie_jar.clear()
    seeded = (await served.post("/seed_session", COUNTER["task"]))[1]
    own = Talker(served, {"id": seeded["session_id"], "token": talker.token})
    assert await own.refused("GET") == (401, "unauthorized")


async def test_a_token_can_be_renewed_for_as_long_as_the_thread_lives(serve: Any) -> None:
    now = 1_000_000.0
    served = await serve(now=lambda: now, ttl=24 * 3600.0)
    talker = await created(served)
    for _ in range(5):
        now += 20 * 3600
        await talker.say("still here")
        talker.token = (await talker.good("GET"))["token"]
    assert len(await talker.texts()) == 5


async def test_threads_are_listed_for_those_who_run_the_server(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, admin_token="the admin's token")
    anns = [(await created(served, user="ann")).thread["id"] for _ in range(3)]
    bobs = [(await created(served, user="bob", **COUNTER)).thread["id"]]
    anybody = Talker(served)
    assert await anybody.refused("GET") == (401, "unauthorized")
    anybody.token = (await created(served)).token
    assert await anybody.refused("GET") == (401, "unauthorized")
    listed = await anybody.good("GET", "?user=ann", **ADMIN)
    assert ([one["id"] for one in listed["threads"]], listed["next"]) == (anns[::-1], None)
    found = Talker(served, listed["threads"][0])
    assert (await found.say("hello"))["phase"] == "planning"
    page = await anybody.good("GET", "?user=ann&limit=2", **ADMIN)
    rest = await anybody.good("GET", f"?user=ann&cursor={page['next']}", **ADMIN)
    assert [one["id"] for one in page["threads"] + rest["threads"]] == anns[::-1]
    listed = await anybody.good("GET", "?environment=counter", **ADMIN)
    assert [one["id"] for one in listed["threads"]] == bobs


async def test_threads_count_among_the_sessions_and_the_requests(serve: Any) -> None:
    served = await serve(max_sessions=2, max_body=1000)
    talker = await created(served)
    await talker.good("POST", "/fork", {})
    assert await Talker(served).refused("POST", "", {}) == (503, "busy")
    assert await talker.refused("POST", "/fork", {}) == (503, "busy")
    assert await talker.refused("POST", "/messages", {"message": "x" * 2000}) == (413, "too_large")
    served.app.in_flight = served.app.limits.max_calls
    assert await talker.refused("GET") == (503, "busy")


async def test_runs_are_counted(serve: Any) -> None:
    served = await serve(model=model("Fails"))
    plain, counter = await created(served), await created(served, **COUNTER)
    await plain.say("fail")
    await plain.refused("POST", "/run", {})
    await counter.say(" ")
    await counter.run()
    async with served.client.get(f"{served.url}/metrics") as reply:
        text = await reply.text()
    assert 'stateroom_sessions_seeded_total{environment="thread"} 1.0' in text
    assert 'stateroom_thread_runs_total{environment="thread",outcome="error"} 1.0' in text
    assert 'stateroom_thread_runs_total{environment="counter",outcome="completed"} 1.0' in text
    assert 'stateroom_thread_run_duration_seconds_count{environment="counter"} 1.0' in text


MISTAKES: list[tuple[str, str, Any, str]] = [
    *(("POST", "", {"environment": name}, "environment") for name in ("nobody", "weather")),
    ("POST", "", {"user": ""}, "user"),
    ("POST", "", {"users": "ann"}, "users"),
    ("POST", "", {"metadata": 1}, "metadata"),
    ("POST", "", {"task": []}, "task"),
    *(("GET", f"?{query}", None, query.partition("=")[0]) for query in ("limit=0", "cursor=x", "environment=nobody")),
    *(("GET", f"/ID/items?{query}", None, query.partition("=")[0]) for query in ("after=-1", "limit=1001")),
    ("GET", "/ID?at=1", None, "at"),
    ("POST", "/ID/messages", {}, "message"),
    ("POST", "/ID/messages", {"message": []}, "message"),
    ("POST", "/ID/messages", {"message": 1}, "message"),
    ("POST", "/ID/messages", {"message": {"role": "boss", "content": ""}}, "message"),
    ("POST", "/ID/messages", {"message": "x", "pin": 1}, "pin"),
    ("POST", "/ID/messages", {"message": "x", "user": ""}, "user"),
    ("POST", "/ID/run", {"model": "x"}, "model"),
    ("POST", "/ID/fork", {"at": 0}, "at"),
    ("POST", "/ID/cancel", {"reason": 1}, "reason"),
    ("DELETE", "/ID?force=1", None, "force"),
]
"""A method, a path, a body, and the field that is wrong."""


async def test_a_mistake_is_named(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment())
    talker = await created(served)
    talker.path = "/threads"
    admin = Talker(served)
    for method, path, body, field in MISTAKES:
        status, refused = await (admin if path.startswith("?") else talker).ask(
            method, path.replace("ID", talker.thread["id"]), body
        )
        assert (status, refused["error"]["code"]) == (422, "invalid_arguments"), (path, body)
        assert list(refused["error"]["fields"]) == [field], (path, body)
    assert await talker.refused("POST", "", COUNTER | {"task": {}}) == (422, "invalid_task")
    assert len(await served.services.store.heads()) == 1


async def test_a_run_with_nothing_to_answer_is_refused(serve: Any) -> None:
    talker = await created(await serve(model=model("Echo")))
    assert await talker.refused("POST", "/run", {}) == (409, "invalid_move")
    await talker.say("hello")
    await talker.run()
    assert (await talker.run())["output"] == []


async def test_an_environment_cannot_have_the_name_of_plain_threads(serve: Any) -> None:
    class Thread(PurseEnvironment):
        pass

    with raises(DefinitionError):
        await serve(Thread())
