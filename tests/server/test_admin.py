"""The admin API: looking into sessions and changing them, over a real connection, on every kind of store."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from stateroom import Environment, Sessions, State, tool
from stateroom.server import admin
from stateroom.session import Update
from stateroom.store import open_store

ROW = {"responses_create_params": {"input": "add"}, "initial_count": 3, "expected_count": 9}


class Ledger(State):
    """A state with much that JSON lacks."""

    opened: datetime = datetime(2024, 5, 1, 12, tzinfo=UTC)
    total: Decimal = Decimal("1.50")
    tags: set[str] = {"b", "a", "c"}
    numbers: frozenset[int] = frozenset({10, 9})
    seal: bytes = b"\xff\x00"
    days: list[tuple[date, str]] = []
    by_number: dict[int, str] = {}
    odd: dict[str, int] = {"\ud83d": 1}
    limit: float = float("inf")


class LedgerEnvironment(Environment[Ledger]):
    """Keep a ledger."""

    @tool
    def note(self, state: Ledger, day: date, tag: str) -> str:
        """Note a day."""
        state.days.append((day, tag))
        state.by_number[len(state.days)] = tag
        state.tags.add(tag)
        return tag

    def seed(self, task: Any) -> Ledger:
        return Ledger()

    def verify(self, state: Ledger) -> float:
        return 1.0


@pytest.fixture
async def served(serve: Any, store_url: str) -> Any:
    return await serve(store=store_url)


async def ask(served: Any, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
    """The status and the decoded body of a reply to a client of the admin's own, without a session's cookie."""
    given = {} if body is None else {"json": body}
    async with aiohttp.request(method, f"{served.url}/admin{path}", **given, **options) as reply:
        assert "set-cookie" not in reply.headers
        return reply.status, await reply.json()


async def told(served: Any, method: str, path: str, body: Any = None) -> Any:
    """The body of a reply that is good."""
    status, reply = await ask(served, method, path, body)
    assert status == 200, reply
    return reply


async def refusal(served: Any, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """The status and the code of an error."""
    status, reply = await ask(served, method, path, body)
    return status, reply["error"]["code"]


ACTIONS: dict[str, Any] = {"fork": {}, "rewind": {"to": 1}, "checkpoint": {"name": "x"}, "close": {}}


async def seed(served: Any, environment: str = "counter", **options: Any) -> Any:
    """A new session of the server's own."""
    return await served.services.environments[environment].sessions.seed(ROW, **options)


async def counted(served: Any, *counts: int) -> Any:
    """A new session in which the counter was incremented."""
    session = await seed(served)
    for count in counts:
        assert (await session.call("increment_counter", {"count": count}, call_id=f"add {count}")).ok
    return session


def value(before: int, after: int) -> list[dict[str, Any]]:
    """A change of the counter's value, as data."""
    text = f"value: {before} → {after}"
    return [{"place": ["value"], "kind": "changed", "before": before, "after": after, "text": text}]


async def list_all(served: Any, query: str) -> list[dict[str, Any]]:
    """A whole listing, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await told(served, "GET", f"/sessions?{query}{cursor}")
        found += page["sessions"]
        if page["next"] is None:
            return found
        assert page["next"] not in cursor
        cursor = f"&cursor={page['next']}"


@pytest.fixture
async def session(served: Any) -> Any:
    """A session at 7."""
    return await counted(served, 4)


async def test_a_session_is_listed_with_what_is_known_of_it(served: Any) -> None:
    session = await seed(served, owner="ann")
    fork = await session.fork()
    listed = await told(served, "GET", "/sessions")
    assert listed["next"] is None
    by_id = {one["id"]: one for one in listed["sessions"]}
    head = await served.services.store.head(session.id)
    assert by_id[session.id] == {
        "id": session.id, "environment": "counter", "owner": "ann", "status": "live", "phase": None,
        "reward": None, "revision": 1, "created": head.created, "expires": head.expires, "parent": None,
    }  # fmt: skip
    assert by_id[fork.id]["parent"] == {"session": session.id, "revision": 1}


async def test_sessions_are_listed_by_each_of_their_properties(served: Any) -> None:
    judged = [await counted(served, count) for count in (1, 6, 6)]
    assert [(await session.verify()).reward for session in judged] == [0.0, 1.0, 1.0]
    await judged[0].close()
    talks = await seed(served, owner="ann")
    await talks.agent.say(Update([], "user", ("new_task",)))
    fork = await talks.fork()
    low, *high = [session.id for session in judged]
    whole = [low, *high, talks.id, fork.id]

    async def ids(query: str) -> list[str]:
        return [one["id"] for one in await list_all(served, f"limit=1&{query}")]

    assert sorted(await ids("order=oldest")) == sorted(whole)
    assert await ids("order=oldest") == (await ids("order=newest"))[::-1]
    assert await ids("order=reward") == [*high[::-1], low]
    assert await ids("min_reward=0.5&order=oldest") == high
    assert await ids("max_reward=0.5") == [low]
    assert await ids("min_reward=2") == []
    assert await ids("phase=planning&order=oldest") == [talks.id, fork.id]
    assert await ids("phase=done") == []
    assert (await ids("status=closed"), await ids("environment=nothing")) == ([low], [])
    assert await ids("status=live&owner=ann&environment=counter&order=oldest") == [talks.id, fork.id]
    assert await ids(f"prefix={low[:20]}") == [low]
    rows = {one["id"]: (one["phase"], one["reward"]) for one in await list_all(served, "")}
    assert rows == {
        low: (None, 0.0), **dict.fromkeys(high, (None, 1.0)), talks.id: ("planning", None), fork.id: ("planning", None)
    }  # fmt: skip


async def test_a_session_with_and_without_its_verdict(served: Any) -> None:
    session = await counted(served, 4, 2)
    shown = await told(served, "GET", f"/sessions/{session.id}")
    assert (shown["id"], shown["revision"], shown["status"]) == (session.id, 3, "live")
    assert (shown["sealed"], shown["verdict"]) == (False, None)
    await session.verify()
    _, shown = await ask(served, "GET", f"/sessions/{session.id}")
    assert (shown["sealed"], shown["verdict"]["reward"]) == (True, 1.0)
    fork = await session.fork()
    _, shown = await ask(served, "GET", f"/sessions/{fork.id}")
    assert (shown["sealed"], shown["verdict"]) == (False, None)


async def test_looking_does_not_prolong_a_life(serve: Any, store_url: str) -> None:
    now = 1000.0
    served = await serve(store=store_url, ttl=100.0, now=lambda: now)
    session = await counted(served, 4)
    now = 1090.0
    for path in ("", "/log", "/state", "/diff?from=1"):
        assert (await ask(served, "GET", f"/sessions/{session.id}{path}"))[0] == 200
    assert (await served.services.store.head(session.id)).expires == 1100.0


async def test_an_id_may_be_any_text(served: Any) -> None:
    session = await served.services.environments["counter"].sessions.seed(ROW, session_id="a/log? b%")
    assert (await told(served, "GET", "/sessions/a%2Flog%3F%20b%25"))["id"] == session.id
    async with served.client.get(f"{served.url}/ng-rollout/r1/admin/sessions/a%2Flog%3F%20b%25/state") as reply:
        assert (await reply.json())["state"] == {"value": 3}


async def test_the_lineage_of_a_session(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = await counted(served, 1, 2)
    parent = await root.fork(at=2)
    session = await parent.fork()
    await session.call("increment_counter", {"count": 1})
    child, other = await session.fork(at=1), await session.fork()
    grandchild = await child.fork()
    await other.close()
    await root.fork()  # a relative of another line
    status, found = await ask(served, "GET", f"/sessions/{session.id}/lineage")
    assert (status, found["cut"]) == (200, False)
    assert [each["id"] for each in found["ancestors"]] == [root.id, parent.id]
    assert found["session"]["parent"] == {"session": parent.id, "revision": 2}
    shown = {each["id"]: (each["parent"], each["status"]) for each in found["descendants"]}
    assert shown == {
        child.id: ({"session": session.id, "revision": 1}, "live"),
        other.id: ({"session": session.id, "revision": 3}, "closed"),
        grandchild.id: ({"session": child.id, "revision": 1}, "live"),
    }
    monkeypatch.setattr(admin, "MAX_RELATIVES", 2)
    _, found = await ask(served, "GET", f"/sessions/{session.id}/lineage")
    assert (len(found["descendants"]), found["cut"]) == (2, True)
    monkeypatch.setattr(admin, "MAX_RELATIVES", 1)
    _, found = await ask(served, "GET", f"/sessions/{grandchild.id}/lineage")
    assert ([each["id"] for each in found["ancestors"]], found["cut"]) == ([child.id], True)


async def test_a_log_tells_what_each_entry_changed(served: Any, session: Any) -> None:
    await session.checkpoint("here")
    await session.rewind(to=1)
    await session.call("increment_counter", {"count": 1})
    await session.verify()
    await session.close()
    log = await told(served, "GET", f"/sessions/{session.id}/log")
    assert log["next"] is None
    assert all(type(entry.pop("at")) is float for entry in log["entries"])
    verdict, response = (log["entries"][5].pop(name) for name in ("verdict", "response"))
    shown = [(entry.pop("title"), entry.pop("line")) for entry in log["entries"]]
    assert shown[1] == ("increment_counter", 'increment_counter(count=4) → {"success": true}')
    assert shown[3] == ("rewind", "back to revision 1")
    assert (verdict["reward"], type(response)) == (0.0, str)
    call = {"kind": "call", "name": "increment_counter", "output": {"success": True}}
    assert log["entries"] == [
        {"revision": 1, "kind": "seed", "call_id": None, "input": ROW, "changes": []},
        {"revision": 2, "call_id": "add 4", "input": {"count": 4}, "changes": value(3, 7), **call},
        {"revision": 3, "kind": "checkpoint", "call_id": None, "name": "here", "changes": []},
        {"revision": 4, "kind": "rewind", "call_id": None, "to": 1, "changes": value(7, 3)},
        {"revision": 5, "call_id": None, "input": {"count": 1}, "changes": value(3, 4), **call},
        {"revision": 6, "kind": "verdict", "call_id": None, "changes": []},
        {"revision": 7, "kind": "close", "call_id": None, "changes": []},
    ]


async def test_a_page_costs_the_same_wherever_it_lies(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve()
    session = await counted(served, *range(1000))
    store = served.services.store
    read = 0

    def counting(method: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal read
            found = await method(*args, **options)
            read += len(found if isinstance(found, list) else found.entries)
            return found

        return counted

    monkeypatch.setattr(store, "entries", counting(store.entries))
    monkeypatch.setattr(store, "load", counting(store.load))
    costs = []
    for after in (100, 500, 950):
        read = 0
        assert (await ask(served, "GET", f"/sessions/{session.id}/log?after={after}&limit=20"))[0] == 200
        costs.append(read)
    assert max(costs) < 250


async def test_the_state_at_any_revision_and_what_differs(served: Any) -> None:
    session = await counted(served, 4, 2)
    where = f"/sessions/{session.id}"
    assert await ask(served, "GET", f"{where}/state") == (200, {"revision": 3, "state": {"value": 9}})
    assert await ask(served, "GET", f"{where}/state?at=1") == (200, {"revision": 1, "state": {"value": 3}})
    differs = {"from": 1, "to": 3, "with": session.id, "differences": value(3, 9)}
    assert await ask(served, "GET", f"{where}/diff?from=1") == (200, differs)
    differs = {"from": 3, "to": 2, "with": session.id, "differences": value(9, 7)}
    assert await ask(served, "GET", f"{where}/diff?from=3&to=2") == (200, differs)
    assert (await ask(served, "GET", f"{where}/diff?from=2&to=2"))[1]["differences"] == []
    for path in ("state?at=4", "diff?from=4", "diff?from=1&to=4"):
        status, reply = await ask(served, "GET", f"{where}/{path}")
        assert (status, reply["error"]["code"]) == (404, "unknown_revision")
        assert "has no revision 4; it has 1 to 3" in reply["error"]["message"]


async def test_what_json_lacks_is_readable(serve: Any, store_url: str) -> None:
    served = await serve(LedgerEnvironment(), store=store_url)
    session = await seed(served, "ledger")
    for tag in ("x", "y"):
        assert (await session.call("note", {"day": "2024-05-02", "tag": tag})).ok
    where = f"/sessions/{session.id}"
    shown = await told(served, "GET", f"{where}/state")
    assert shown["state"] == {
        "opened": "2024-05-01T12:00:00Z",
        "total": "1.50",
        "tags": ["a", "b", "c", "x", "y"],
        "numbers": [9, 10],
        "seal": "_wA=",
        "days": [["2024-05-02", "x"], ["2024-05-02", "y"]],
        "by_number": {"1": "x", "2": "y"},
        "odd": {"\ud83d": 1},
        "limit": "inf",
    }
    _, log = await ask(served, "GET", f"{where}/log")
    assert [len(entry["changes"]) for entry in log["entries"]] == [0, 3, 3]
    differs = await told(served, "GET", f"{where}/diff?from=1&to=3")
    assert differs["differences"][0]["text"] == 'tags: ["a", "b", "c"] → ["a", "b", "c", "x", "y"]'
    assert [(each["place"], each["kind"], each["after"]) for each in differs["differences"][1:]] == [
        (["days", 0], "new", ["2024-05-02", "x"]),
        (["days", 1], "new", ["2024-05-02", "y"]),
        (["by_number", "1"], "new", "x"),
        (["by_number", "2"], "new", "y"),
    ]


async def test_what_differs_between_two_sessions(served: Any) -> None:
    session, other = await counted(served, 4, 2), await counted(served, 1)
    path = f"/sessions/{session.id}/diff?from=2&with={other.id}"
    differs = {"from": 2, "to": 2, "with": other.id, "differences": value(7, 4)}
    assert await ask(served, "GET", path) == (200, differs)
    assert (await ask(served, "GET", f"{path}&to=1"))[1]["differences"] == value(7, 3)
    assert await refusal(served, "GET", f"{path}&to=3") == (404, "unknown_revision")  # that only the first has
    assert (await ask(served, "GET", f"/sessions/{session.id}/diff?from=1&with=nobody"))[0] == 410


async def test_forks_can_be_driven_with_their_tokens(served: Any, session: Any) -> None:
    made = await told(served, "POST", f"/sessions/{session.id}/fork", {"at": 1, "n": 3})
    assert len({fork["id"] for fork in made["sessions"]}) == 3
    assert len({fork["token"] for fork in made["sessions"]}) == 3
    async with aiohttp.ClientSession() as client:
        for count, fork in enumerate(made["sessions"]):
            cookie = {"Cookie": f"stateroom_counter={fork['token']}"}
            async with client.post(f"{served.url}/increment_counter", json={"count": count}, headers=cookie) as reply:
                assert reply.status == 200
            assert (await ask(served, "GET", f"/sessions/{fork['id']}/state"))[1]["state"] == {"value": 3 + count}
    assert (await ask(served, "GET", f"/sessions/{session.id}/state"))[1]["state"] == {"value": 7}
    status, made = await ask(served, "POST", f"/sessions/{session.id}/fork")
    assert (status, len(made["sessions"])) == (200, 1)
    assert (await ask(served, "GET", f"/sessions/{made['sessions'][0]['id']}/state"))[1]["state"] == {"value": 7}


async def test_a_closed_or_sealed_session_can_be_forked_and_not_changed(served: Any, session: Any) -> None:
    await session.verify()
    where = f"/sessions/{session.id}"
    assert await refusal(served, "POST", f"{where}/rewind", {"to": 1}) == (409, "session_sealed")
    assert (await ask(served, "POST", f"{where}/fork"))[0] == 200
    status, closed = await ask(served, "POST", f"{where}/close")
    assert (status, closed["status"], closed["revision"]) == (200, "closed", 4)
    assert await ask(served, "POST", f"{where}/close") == (200, closed)
    for action in ("rewind", "checkpoint"):
        assert await refusal(served, "POST", f"{where}/{action}", ACTIONS[action]) == (410, "session_closed")
    assert (await ask(served, "POST", f"{where}/fork"))[0] == 200


async def test_forks_need_room_and_what_ends_makes_room(serve: Any, store_url: str) -> None:
    served = await serve(store=store_url, max_sessions=4)
    session = await seed(served)
    await served.services.count.update()
    made = await told(served, "POST", f"/sessions/{session.id}/fork", {"n": 3})
    assert (await ask(served, "POST", f"/sessions/{session.id}/fork"))[0] == 503
    one, two, three = (fork["id"] for fork in made["sessions"])
    assert (await ask(served, "POST", f"/sessions/{one}/close"))[0] == 200
    assert (await ask(served, "DELETE", f"/sessions/{one}"))[0] == 200  # to close it has made room already
    assert (await ask(served, "DELETE", f"/sessions/{two}"))[0] == 200
    assert served.services.count.live == await served.services.store.count(served.services.now()) == 2
    assert (await ask(served, "POST", f"/sessions/{three}/fork", {"n": 2}))[0] == 200
    assert (await ask(served, "POST", f"/sessions/{three}/fork"))[0] == 503


async def test_a_rewind_and_a_checkpoint_are_entries(served: Any, session: Any) -> None:
    where = f"/sessions/{session.id}"
    _, made = await ask(served, "POST", f"{where}/checkpoint", {"name": "here"})
    assert (made["name"], made["revision"]) == ("here", 3)
    assert (await ask(served, "POST", f"{where}/checkpoint", {"name": "here"}))[0] == 409
    assert (await ask(served, "POST", f"{where}/rewind", {"to": "nowhere"}))[0] == 404
    made = await told(served, "POST", f"{where}/fork", {"at": "here"})
    assert (await ask(served, "GET", where))[1]["children"] == [{"session": made["sessions"][0]["id"], "revision": 3}]
    status, rewound = await ask(served, "POST", f"{where}/rewind", {"to": 1})
    assert (status, rewound["revision"], rewound["status"]) == (200, 4, "live")
    assert session.state.value == 3
    assert await refusal(served, "POST", f"{where}/rewind", {"to": 9}) == (404, "unknown_revision")


async def test_a_deleted_session_is_gone_for_its_client_too(served: Any) -> None:
    _, seeded = await served.post("/seed_session", ROW)
    session = seeded["session_id"]
    assert (await served.post("/increment_counter", {"count": 1}))[0] == 200
    assert served.services.environments["counter"].sessions.loaded(session)
    assert await ask(served, "DELETE", f"/sessions/{session}") == (200, {"deleted": session})
    assert not served.services.environments["counter"].sessions.loaded(session)
    for tool_name, arguments in (("increment_counter", {"count": 1}), ("get_counter_value", {})):
        assert await served.refused(f"/{tool_name}", arguments) == (410, "unknown_session")
    assert (await ask(served, "DELETE", f"/sessions/{session}"))[0] == 410
    assert (await ask(served, "GET", "/sessions"))[1]["sessions"] == []


async def test_forks_of_a_deleted_session_stay(served: Any) -> None:
    _, seeded = await served.post("/seed_session", ROW)
    session = seeded["session_id"]
    _, made = await ask(served, "POST", f"/sessions/{session}/fork")
    fork = made["sessions"][0]["id"]
    assert (await ask(served, "DELETE", f"/sessions/{session}"))[0] == 200
    assert await served.refused("/increment_counter", {"count": 1}) == (410, "session_expired")
    for action, body in ACTIONS.items():
        assert await refusal(served, "POST", f"/sessions/{session}/{action}", body) == (410, "session_expired")
    assert await ask(served, "GET", f"/sessions/{fork}/state") == (200, {"revision": 1, "state": {"value": 3}})
    assert (await ask(served, "GET", f"/sessions/{fork}/log"))[1]["entries"][0]["kind"] == "seed"
    assert (await ask(served, "DELETE", f"/sessions/{fork}"))[0] == 200
    assert (await ask(served, "GET", f"/sessions/{fork}"))[0] == 410


async def test_sessions_of_environments_that_are_not_served_can_be_read_and_deleted(
    serve: Any, shared_url: str
) -> None:
    async with open_store(shared_url) as store:
        session = (await Sessions(LedgerEnvironment(), store).seed({})).id
    served = await serve(store=shared_url)
    for path in ("", "/state", "/log", "/diff?from=1"):
        assert (await ask(served, "GET", f"/sessions/{session}{path}"))[0] == 200
    for action, body in ACTIONS.items():
        status, refused = await ask(served, "POST", f"/sessions/{session}/{action}", body)
        assert status == 409
        assert "belongs to the environment 'ledger', which this server does not serve" in refused["error"]["message"]
    assert (await ask(served, "DELETE", f"/sessions/{session}"))[0] == 200
    assert (await ask(served, "GET", f"/sessions/{session}"))[0] == 410
