"""Threads on a server of several processes, and on one that is killed and started again."""

import asyncio
from pathlib import Path
from typing import Any

from stateroom.model import text_of

MODELS = Path(__file__).with_name("thread_models.py")
COUNTER = {"environment": "counter", "task": {"initial_count": 3, "expected_count": 9}}


async def ask(connect: Any, command: Any, thread: dict[str, Any], rest: str, body: Any = None) -> tuple[int, Any]:
    """Ask by a connection of its own, which any of the workers may get."""
    client = await connect(command.root)
    headers = {"authorization": f"Bearer {thread['token']}", "connection": "close"}
    path = f"/threads/{thread['id']}{rest}"
    reply: tuple[int, Any] = await (
        client.get(path, headers=headers) if body is None else client.post(path, body, headers=headers)
    )
    return reply


def clear(folder: Path) -> None:
    """Remove what the model and its tester have told each other."""
    for file in folder.glob("a*-?"):
        file.unlink()


async def started(launch: Any, tmp_path: Path, workers: int) -> Any:
    options = ("--store", "sqlite:///rooms.db", "--model", f"{MODELS}:Waits", "--workers", str(workers))
    return await asyncio.to_thread(launch, "counter", *options, STATEROOM_TEST_FOLDER=str(tmp_path))


async def test_any_worker_can_go_on_with_a_thread_and_cancel_what_another_runs(
    launch: Any, connect: Any, until: Any, tmp_path: Path
) -> None:
    command = await started(launch, tmp_path, 2)
    client = await connect(command.root)
    for _ in range(4):  # often enough that it is not always the same worker
        _, thread = await client.post("/threads", COUNTER)
        assert (await ask(connect, command, thread, "/messages", {"message": "4"}))[0] == 200
        running = asyncio.create_task(ask(connect, command, thread, "/run", {}))
        await until((tmp_path / "asked-0").exists)
        status, refused = await ask(connect, command, thread, "/run", {})
        assert (status, refused["error"]["code"]) == (503, "session_leased")
        assert (await ask(connect, command, thread, "/cancel", {}))[1]["phase"] == "cancelled"
        for done in (0, 1):
            (tmp_path / f"answer-{done}").touch()
        assert (await running)[1]["status"] == "cancelled"
        assert (await ask(connect, command, thread, "/messages", {"message": "2"}))[0] == 200
        assert (await ask(connect, command, thread, "/run", {}))[1]["status"] == "completed"
        clear(tmp_path)


async def test_a_thread_goes_on_when_the_server_was_killed_and_started_again(
    launch: Any, connect: Any, until: Any, tmp_path: Path
) -> None:
    command = await started(launch, tmp_path, 1)
    _, thread = await (await connect(command.root)).post("/threads", COUNTER)
    (tmp_path / "answer-0").touch()
    await ask(connect, command, thread, "/messages", {"message": "4"})
    running = asyncio.create_task(ask(connect, command, thread, "/run", {}))
    await until((tmp_path / "asked-1").exists)
    command.kill()
    await asyncio.gather(running, return_exceptions=True)
    (tmp_path / "answer-1").touch()
    command = await started(launch, tmp_path, 1)
    assert (await ask(connect, command, thread, ""))[1]["phase"] == "executing"
    status, refused = await ask(connect, command, thread, "/run", {})
    assert (status, refused["error"]["code"]) == (503, "session_leased")  # for as long as the lease of the dead
    assert (await ask(connect, command, thread, "/cancel", {}))[1]["phase"] == "cancelled"
    await ask(connect, command, thread, "/messages", {"message": "2"})
    assert (await ask(connect, command, thread, "/run", {}))[1]["status"] == "completed"
    _, found = await ask(connect, command, thread, "/items")
    assert [item["type"] for item in found["items"]].count("function_call_output") == 1
    assert text_of(found["items"][-1]) == "Done."
