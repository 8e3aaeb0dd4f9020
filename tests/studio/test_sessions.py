"""Studio's own API on sessions: a model continues them, and those of runs are in stores of their own."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from stateroom.store import open_store
from stateroom.studio import Studio
from tests.server.conftest import Served
from tests.studio.conftest import OpenStudio, until

MODELS = Path(__file__).parents[1] / "server" / "thread_models.py"
ROW = {"initial_count": 3, "expected_count": 5, "responses_create_params": {"input": "1 1"}}

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def act(served: Served, path: str, **body: Any) -> Any:
    found = await served.good(f"/studio/api{path}", {"by": "ada", **body})
    return found


async def seed(served: Served) -> str:
    return str((await act(served, "/sessions", environment="counter", row=ROW))["id"])


async def log(served: Served, path: str) -> list[dict[str, Any]]:
    return (await served.get(f"/studio/api{path}/log"))[1]["entries"]


async def is_idle(served: Served, session: str) -> bool:
    return not (await served.get(f"/studio/api/sessions/{session}/continue"))[1]["running"]


async def test_a_model_continues_from_any_revision_of_a_fork(open_studio: OpenStudio) -> None:
    served = await open_studio(model=f"{MODELS}:Adds")
    session = await seed(served)
    assert (await act(served, f"/sessions/{session}/continue")) == {"running": True, "error": None}
    await until(lambda: is_idle(served, session))
    entries = await log(served, f"/sessions/{session}")
    assert [entry["kind"] for entry in entries if entry["kind"] != "message"] == ["seed", "checkpoint", "call", "call"]
    assert entries[1]["by"] == "ada"
    [first, _] = [entry["revision"] for entry in entries if entry["kind"] == "call"]
    [fork] = (await act(served, f"/sessions/{session}/fork", at=first))["sessions"]
    await act(served, f"/sessions/{fork['id']}/continue")
    await until(lambda: is_idle(served, fork["id"]))
    _, state = await served.get(f"/studio/api/sessions/{fork['id']}/state")
    assert state["state"] == {"value": 5}
    calls = [entry["call_id"] for entry in await log(served, f"/sessions/{fork['id']}") if entry["kind"] == "call"]
    assert len(calls) == len({*calls}) == 2


async def test_of_two_who_let_a_model_continue_at_once_one_is_refused(open_studio: OpenStudio, folder: Path) -> None:
    served = await open_studio(model=f"{MODELS}:Waits", store=f"sqlite:///{folder / 'rooms.db'}")
    session = await seed(served)
    path = f"/studio/api/sessions/{session}/continue"
    asked = [served.post(path, {"by": name}) for name in ("ada", "bob", "cy")]
    assert sorted(status for status, _ in await asyncio.gather(*asked)) == [200, 409, 409]
    assert len([entry for entry in await log(served, f"/sessions/{session}") if entry["kind"] == "checkpoint"]) == 1
    await act(served, f"/sessions/{session}/stop")
    (folder / "answer-0").touch()


async def test_a_model_is_stopped_while_it_thinks(open_studio: OpenStudio, folder: Path) -> None:
    served = await open_studio(model=f"{MODELS}:Waits")
    session = await seed(served)
    await act(served, f"/sessions/{session}/continue")
    await until((folder / "asked-0").exists)
    status, refused = await served.post(f"/studio/api/sessions/{session}/continue", {"by": "bob"})
    assert (status, refused["error"]["code"]) == (409, "conflict")
    assert (await act(served, f"/sessions/{session}/stop"))["phase"] == "cancelled"
    assert await is_idle(served, session)
    (folder / "answer-0").touch()
    *_, last = await log(served, f"/sessions/{session}")
    assert (last["kind"], last["person"], last["reason"]) == ("message", "ada", "stopped")


async def test_what_goes_wrong_is_told(open_studio: OpenStudio, studio: Served) -> None:
    session = await seed(studio)
    status, refused = await studio.post(f"/studio/api/sessions/{session}/continue", {"by": "ada"})
    assert (status, "without a model" in refused["error"]["message"]) == (404, True)
    served = await open_studio(model="reference")
    thread = (await act(served, "/sessions", environment="thread", row={}))["id"]
    told = {"by": "ada", "message": "Hello"}
    status, refused = await served.post(f"/studio/api/sessions/{thread}/continue", told)
    assert status == 404
    assert "the model reference, which cannot act in thread" in refused["error"]["message"]
    served = await open_studio(model=f"{MODELS}:Fails")
    session = await seed(served)
    await act(served, f"/sessions/{session}/continue")
    await until(lambda: is_idle(served, session))
    _, found = await served.get(f"/studio/api/sessions/{session}/continue")
    assert "out of order" in found["error"]


async def test_sessions_of_a_run_are_read_and_forked_in_the_store_of_the_run(
    open_studio: OpenStudio, runs: Path
) -> None:
    served = await open_studio(studio=Studio(runs=runs))
    run = f"/runs/{quote('a/first', safe='')}"
    _, page = await served.get(f"/studio/api{run}/rollouts")
    session = page["rollouts"][0]["session"]
    assert (await log(served, f"{run}/sessions/{session}"))[0]["kind"] == "seed"
    [fork] = (await act(served, f"{run}/sessions/{session}/fork", at=1))["sessions"]
    await act(served, f"{run}/sessions/{fork['id']}/call", name="increment_counter", arguments={"count": 1})
    assert (await served.get(f"/studio/api/sessions/{session}"))[0] == 410
    async with open_store(f"sqlite:///{runs / 'a' / 'first_sessions.db'}") as store:
        assert [head.id for head in await store.children(session)] == [fork["id"]]


async def test_only_the_store_beside_a_run_is_opened(open_studio: OpenStudio, runs: Path) -> None:
    described, sessions = runs / "a" / "first_run.json", runs / "a" / "first_sessions.db"
    served = await open_studio(studio=Studio(runs=runs))
    elsewhere = sessions.rename(runs / "elsewhere.db")
    run = f"/studio/api/runs/{quote('a/first', safe='')}"
    for told in ("redis://elsewhere/0", f"sqlite:///{elsewhere}"):
        described.write_text(json.dumps({**json.loads(described.read_text()), "store": told}))
        status, refused = await served.get(f"{run}/sessions")
        assert (status, told in refused["error"]["message"]) == (404, True)
    sessions.symlink_to(elsewhere)
    assert (await served.get(f"{run}/sessions"))[0] == 404
