"""Several worker processes: any of them serves any session, and none is lost or left behind."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.more("time")

WORKERS = 4
SESSIONS, WRITES, READS = 4, 60, 20


@pytest.fixture(scope="module", params=["sqlite", "redis", "postgresql"])
def served(launch_once: Any, room: str, request: pytest.FixtureRequest) -> Any:
    if request.param == "sqlite":
        url = "sqlite:///rooms.db"
    elif request.param == "redis":
        url = f"{request.getfixturevalue('redis_url')}?prefix=w{uuid4().hex}:"
    else:
        url = f"{request.getfixturevalue('postgresql_url')}?schema=w{uuid4().hex}"
    return launch_once(room, "--workers", str(WORKERS), "--store", url)


async def test_any_worker_serves_any_session(served: Any, connect: Any) -> None:
    processes: Counter[int] = Counter()
    rooms = [await connect(served.url) for _ in range(SESSIONS)]
    for client in rooms:
        assert (await client.post("/seed_session"))[0] == 200

    async def call(client: Any, tool: str) -> None:
        body = await client.good(tool)
        processes[body["process"]] += 1

    rounds = 0
    async with asyncio.timeout(PATIENCE):
        while len(processes) < 2:  # at first one of them may be the only one that is up
            rooms = [await connect(client.url, like=client) for client in rooms]
            calls = [call(client, "/add") for client in rooms for _ in range(WRITES)]
            calls += [call(client, "/look") for client in rooms for _ in range(READS)]
            random.shuffle(calls)
            await asyncio.gather(*calls)
            rounds += 1
    assert [(await client.post("/look"))[1]["value"] for client in rooms] == [WRITES * rounds] * SESSIONS
    assert set(processes) <= set(served.workers())


async def test_a_read_sees_what_another_worker_wrote_before(served: Any, connect: Any) -> None:
    writer = await connect(served.url)
    await writer.post("/seed_session")
    value, elsewhere = 0, 0
    async with asyncio.timeout(PATIENCE):
        while elsewhere < 20:
            reader = await connect(writer.url, like=writer)
            at_once = asyncio.gather(*(reader.post("/look") for _ in range(4)))  # so that they come to several workers
            wrote = (await writer.post("/add"))[1]["process"]
            value += 1
            await at_once
            for _, saw in await asyncio.gather(*(reader.post("/look") for _ in range(4))):
                assert saw["value"] == value
                elsewhere += saw["process"] != wrote


async def test_a_call_that_is_repeated_to_another_worker_is_made_once(served: Any, connect: Any) -> None:
    client = await connect(served.url)
    await client.post("/seed_session")
    replies = await asyncio.gather(
        *(client.post("/add", {"count": 5}, headers={"Idempotency-Key": "once"}) for _ in range(20))
    )
    assert len({str(reply) for reply in replies}) == 1
    assert (await client.post("/look"))[1]["value"] == 5


async def test_a_worker_that_dies_is_replaced_and_its_sessions_go_on(served: Any, connect: Any) -> None:
    client = await connect(served.url)
    await client.post("/seed_session")
    assert (await client.post("/add"))[0] == 200
    before = set(served.workers())
    victim = (await client.post("/look"))[1]["process"]
    os.kill(victim, signal.SIGKILL)
    served.wait_until(lambda: len(set(served.workers()) - before) == 1 and len(served.workers()) == WORKERS)
    client = await connect(client.url, like=client)  # the old connection was the dead worker's
    assert (await client.post("/add"))[0] == 200
    assert (await client.post("/look"))[1]["value"] == 2
    served.wait_until(lambda: f"worker {victim} died (exit code -9)" in served.said)


async def ready(command: Any, connect: Any) -> Any:
    """A command that serves in all its workers."""
    client = await connect(command.url)
    assert (await client.get("/ready"))[0] == 200
    command.wait_until(lambda: len(command.workers()) == 2)
    return client


@pytest.mark.parametrize(
    ("number", "tell"), [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)], ids=["kill", "Ctrl-C"]
)
async def test_all_stop_together(launch: Any, connect: Any, number: int, tell: Any) -> None:
    command = launch("counter", "--workers", "2")
    await ready(command, connect)
    tell(command.process.pid, number)
    assert command.wait() == 0
    command.wait_until(lambda: not command.alive())
    assert command.said == ""


def test_an_interrupt_while_they_start_is_quiet(launch: Any) -> None:
    command = launch("counter", "--workers", "2")
    command.wait_until(lambda: len(command.workers()) == 2)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait() == 0
    command.wait_until(lambda: not command.alive())
    assert command.said == ""


async def test_workers_end_when_their_parent_is_killed(launch: Any, connect: Any) -> None:
    command = launch("counter", "--workers", "2")
    client = await ready(command, connect)
    await client.post("/seed_session", {"initial_count": 3, "expected_count": 5})
    command.signal(signal.SIGKILL)
    command.wait()
    command.wait_until(lambda: not command.alive())
    assert command.said == ""


@pytest.mark.parametrize(
    ("death", "why"),
    [
        ('raise AssertionError("not here")', "picky cannot be imported: AssertionError: not here"),
        ("os._exit(7)", "exit code 7"),
    ],
)
def test_workers_that_cannot_start_end_the_command(launch: Any, tmp_path: Path, death: str, why: str) -> None:
    module = f"""
        import multiprocessing, os
        from stateroom.gallery import WeatherEnvironment
        if multiprocessing.parent_process() is not None: {death}
    """
    (tmp_path / "picky.py").write_text("\n".join(line.strip() for line in module.splitlines()))
    command = launch("picky:WeatherEnvironment", "--workers", "2")
    assert command.wait() == 1
    assert why in command.said
    assert "no running event loop" not in command.said
    command.wait_until(lambda: not command.alive())
