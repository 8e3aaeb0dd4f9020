"""Resources of sessions on a server, and of episodes in this process: refused forks, and that all is let go of."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom.model import ModelSource, Scripted, function_call
from stateroom.rollout import RunFiles, run
from stateroom.server import Application, ApplicationOptions
from tests.messages import says
from tests.patience import PATIENCE
from tests.plans import make_run
from tests.session.outside import DeskEnvironment, Page


async def used(client: Any, environment: DeskEnvironment) -> tuple[str, Page, Path]:
    """A session over HTTP that has a page and a folder."""
    _, seeded = await client.post("/seed_session", {})
    assert await client.post("/visit", {"address": "a"}) == (200, ["a"])
    assert await client.post("/write", {"name": "file", "text": "text"}) == (200, 1)
    page, folder = environment.given
    assert folder.is_dir()
    return seeded["session_id"], page, folder


async def test_a_fork_or_rewind_that_cannot_be_honest_is_refused_by_name(serve: Any, connect: Any) -> None:
    environment = DeskEnvironment()
    served = await serve(environment)
    session, *_ = await used(served, environment)
    await served.post("/visit", {"address": "b"})
    admin = await connect(served.url)
    for action, body in (("fork", {"at": 3}), ("rewind", {"to": 3})):
        status, reply = await admin.post(f"/admin/sessions/{session}/{action}", body)
        assert (status, reply["error"]["code"]) == (409, f"cannot_{action}")
        says(reply["error"]["message"])


@pytest.mark.parametrize("how", ["delete", "close_session", "verify"])
async def test_a_session_that_ends_lets_go_of_its_resources(serve: Any, connect: Any, how: str) -> None:
    environment = DeskEnvironment()
    served = await serve(environment)
    session, page, folder = await used(served, environment)
    if how == "delete":
        admin = await connect(served.url)
        async with admin.client.delete(f"{served.url}/admin/sessions/{session}") as reply:
            assert reply.status == 200
    elif how == "close_session":
        assert (await served.post("/close_session", {"resources_session_id": session}))[0] == 200
    else:
        assert (await served.post("/verify", {"response": {"output": []}}))[1]["reward"] == 1.0
    await asyncio.wait_for(page.closed.wait(), PATIENCE)
    assert not folder.exists()


async def test_a_server_that_stops_lets_go_of_all_resources() -> None:
    environment = DeskEnvironment()
    app = Application([environment], ApplicationOptions(secrets=("a secret that is only good for tests",)))
    await app.start()
    session = await app.services.environments["desk"].sessions.seed({})
    await session.call("visit", {"address": "a"})
    await session.call("write", {"name": "file", "text": "text"})
    page, folder = environment.given
    await app.stop()
    assert page.closed.is_set()
    assert not folder.exists()


async def test_a_run_that_is_over_lets_go_of_all_resources(tmp_path: Path) -> None:
    environment = DeskEnvironment()
    model = Scripted([[function_call("write", "w", name="file", text="text")], "Done."])
    source, files = ModelSource("writes", lambda seed: model), RunFiles(tmp_path / "out.jsonl")
    assert (await run(make_run(environment, source, [{}], files, store="memory://"))).failed == 0
    [folder] = environment.given
    assert not folder.exists()
