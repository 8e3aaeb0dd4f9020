"""Acting in sessions from the admin side, over a real connection: seed, call, reply, verify, edit and fork by hand."""

from typing import Any

import pytest

from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from stateroom.session import Update
from tests.environments import TallyEnvironment
from tests.server.test_admin import ROW, LedgerEnvironment, ask, told
from tests.server.test_reply import TalkEnvironment


async def act(served: Any, path: str, body: Any) -> Any:
    return await told(served, "POST", path, body)


async def log_of(served: Any, session: str) -> list[dict[str, Any]]:
    return (await ask(served, "GET", f"/sessions/{session}/log"))[1]["entries"]


@pytest.fixture
async def session(served: Any) -> str:
    """The path of a session that was seeded by hand."""
    found = await act(served, "/sessions", {"environment": "counter", "row": ROW, "owner": "ada"})
    assert (found["environment"], found["owner"], found["revision"], found["status"]) == ("counter", "ada", 1, "live")
    return f"/sessions/{found['id']}"


async def test_an_episode_is_played_by_hand(served: Any, session: str) -> None:
    wrong = await act(served, f"{session}/call", {"name": "increment_counter", "arguments": {"count": "x"}})
    assert (wrong["ok"], wrong["output"]["error"]["code"], wrong["revision"]) == (False, "invalid_arguments", 1)
    call = {"name": "increment_counter", "arguments": {"count": 6}, "call_id": "one", "by": "ada"}
    for _ in range(2):  # a double click
        assert await act(served, f"{session}/call", call) == {"ok": True, "output": {"success": True}, "revision": 2}
    read = await act(served, f"{session}/call", {"name": "get_counter_value"})
    assert read == {"ok": True, "output": {"count": 9}, "revision": 2}
    found = await act(served, f"{session}/verify", {"by": "bob"})
    assert (found["verdict"]["reward"], found["revision"]) == (1.0, 3)
    assert (await act(served, f"{session}/verify", {}))["verdict"] == found["verdict"]
    entries = await log_of(served, session.rpartition("/")[2])
    assert [(entry["kind"], entry.get("by")) for entry in entries] == [
        ("seed", None), ("call", "ada"), ("verdict", "bob"),
    ]  # fmt: skip
    for path, body in (("call", call | {"call_id": "two"}), ("edit", {"changes": [], "by": "ada"})):
        status, refused = await ask(served, "POST", f"{session}/{path}", body)
        assert (status, refused["error"]["code"]) == (409, "session_sealed")


async def test_the_user_answers_and_an_external_call_names_its_person(serve: Any) -> None:
    served = await serve(TalkEnvironment(), TallyEnvironment())
    names = ("talk", "tally")
    talk, tally = [(await act(served, "/sessions", {"environment": name, "row": {}}))["id"] for name in names]
    tea = {"message": "tea", "call_id": "1", "by": "ada"}
    first, again = [await act(served, f"/sessions/{talk}/reply", tea) for _ in range(2)]
    assert (first, first["revision"], first["reply"][:14]) == (again, 2, "You said 'tea'")
    await act(served, f"/sessions/{tally}/call", {"name": "send", "by": "ada"})
    entries = (await log_of(served, talk))[1:] + (await log_of(served, tally))[1:]
    assert [(entry["kind"], entry.get("by")) for entry in entries] == [
        ("call", "ada"), ("started", "ada"), ("call", "ada"),
    ]  # fmt: skip


async def test_an_edit_is_made_or_refused_with_its_place(served: Any, session: str) -> None:
    edit = {"changes": [{"place": ["value"], "value": 9}], "by": "ada", "reason": "a test"}
    assert (await act(served, f"{session}/edit", edit))["revision"] == 2
    *_, entry = await log_of(served, session.rpartition("/")[2])
    assert (entry["kind"], entry["by"], entry["reason"]) == ("edit", "ada", "a test")
    assert [change["text"] for change in entry["changes"]] == ["value: 3 → 9"]
    wrong = {"changes": [{"place": ["valu"], "value": 9}], "by": "ada"}
    status, refused = await ask(served, "POST", f"{session}/edit", wrong)
    assert (status, refused["error"]["code"]) == (422, "invalid_arguments")
    assert list(refused["error"]["fields"]) == ["valu"]
    assert (await act(served, f"{session}/verify", {}))["verdict"]["reward"] == 1.0


async def test_steps_are_undone_and_redone(served: Any, session: str) -> None:
    for count in (1, 2):
        await act(served, f"{session}/call", {"name": "increment_counter", "arguments": {"count": count}})
    assert await act(served, f"{session}/undo", {"steps": 5, "by": "ada"}) == {"steps": 2, "revision": 4}
    assert await act(served, f"{session}/redo", {}) == {"steps": 1, "revision": 5}
    assert (await ask(served, "GET", f"{session}/state"))[1]["state"] == {"value": 4}
    assert await act(served, f"{session}/undo", {}) == {"steps": 1, "revision": 6}
    assert await act(served, f"{session}/undo", {}) == {"steps": 0, "revision": 6}
    entries = await log_of(served, session.rpartition("/")[2])
    assert [(entry["to"], entry["undone"], entry.get("by")) for entry in entries[3:]] == [
        (1, 3, "ada"), (2, 3, None), (1, 3, None),
    ]  # fmt: skip


async def test_edit_and_fork_makes_all_or_nothing(served: Any, session: str) -> None:
    await act(served, f"{session}/call", {"name": "increment_counter", "arguments": {"count": 1}})
    store, parent = served.services.store, session.rpartition("/")[2]
    before = await store.maintenance.export(parent)
    live = served.services.count.live
    wrong = {"at": 1, "n": 2, "edit": {"changes": [{"place": ["value"], "value": None}], "by": "ada"}}
    status, refused = await ask(served, "POST", f"{session}/fork", wrong)
    assert (status, list(refused["error"]["fields"])) == (422, ["value"])
    assert (await store.children(parent), served.services.count.live) == ([], live)
    right = {"at": 1, "n": 2, "edit": {"changes": [{"place": ["value"], "value": 7}], "by": "ada"}}
    made = (await act(served, f"{session}/fork", right))["sessions"]
    for fork in made:
        _, state = await ask(served, "GET", f"/sessions/{fork['id']}/state")
        assert state == {"revision": 2, "state": {"value": 7}}
    assert {head.id for head in await store.children(parent)} == {fork["id"] for fork in made}
    assert await store.maintenance.export(parent) == before


async def test_every_action_names_its_person_in_the_log(served: Any) -> None:
    found = await act(served, "/sessions", {"environment": "counter", "row": ROW, "by": "ada"})
    session = f"/sessions/{found['id']}"
    opened = await served.services.environments["counter"].sessions.open(found["id"])
    await opened.agent.say(Update([], "user", ("new_task", "plan_ready")))
    await opened.agent.say(Update([], "model", ("needs_input",)), question="How many?")
    for name, body in {
        "checkpoint": {"name": "start"},
        "rewind": {"to": "start"},
        "answer": {"input": "six"},
        "cancel": {},
        "close": {},
    }.items():
        await act(served, f"{session}/{name}", {**body, "by": "ada"})
    [fork] = (await act(served, f"{session}/fork", {"by": "ada"}))["sessions"]
    entries = await log_of(served, found["id"]) + (await log_of(served, fork["id"]))[-1:]
    people = [(entry["kind"], entry.get("person") or entry.get("by")) for entry in entries if entry["revision"] != 2]
    kinds = ["seed", "message", "checkpoint", "rewind", "message", "message", "close", "fork"]
    assert people == [(kind, "model" if number == 1 else "ada") for number, kind in enumerate(kinds)]


async def test_environments_are_listed_with_what_forms_need(serve: Any) -> None:
    environments = CounterEnvironment(), TalkEnvironment(), WeatherEnvironment(), LedgerEnvironment()
    served = await serve(*environments, model="reference")
    _, found = await ask(served, "GET", "/environments")
    counter, talk, weather, ledger = found["environments"]
    assert [tool["name"] for tool in counter["tools"]] == ["increment_counter", "get_counter_value"]
    assert [tool["effect"] for tool in counter["tools"]] == ["write", "read"]
    assert counter["tools"][0]["parameters"]["properties"]["count"]["type"] == "integer"
    assert counter["state_schema"]["properties"]["value"]["type"] == "integer"
    assert {"initial_count", "expected_count"} <= counter["task_schema"]["properties"].keys()
    assert counter["examples"][0]["expected_count"] is not None
    assert (counter["model"], talk["model"], talk["replies"], talk["examples"]) == (True, False, True, [])
    assert ledger["state_schema"]["properties"]["seal"]["contentEncoding"] == "base64"
    assert weather["state_schema"] is None
    status, refused = await ask(served, "POST", "/sessions", {"environment": "weather", "row": {}})
    assert (status, list(refused["error"]["fields"])) == (422, ["environment"])
