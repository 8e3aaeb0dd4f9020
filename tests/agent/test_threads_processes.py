"""Threads that go on in another process when the first one was killed."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stateroom import SessionLimits, Sessions
from stateroom.agent import Agent, Threads
from stateroom.store import Store
from tests.agent.thread_worker import Payer, PurseEnvironment
from tests.processes import Start, line, starting

pytestmark = pytest.mark.every_store(shared=True)

WORKER = Path(__file__).with_name("thread_worker.py")


@pytest.fixture
async def start(url: str) -> AsyncIterator[Start]:
    """Starts a worker that runs a thread."""
    async with starting(str(WORKER), url) as start:
        yield start


def later(store: Store) -> Threads:
    """Threads as they are when a dead worker's lease has ended."""
    return Threads(Sessions[Any](PurseEnvironment(), store, SessionLimits(now=lambda: time.time() + 60)))


async def test_a_run_that_was_killed_goes_on_where_it_was(store: Store, start: Start) -> None:
    thread = await Threads(Sessions(PurseEnvironment(), store)).create("ann")
    process = await start(thread.id, "pay 1 2")
    assert await line(process) == "paid"
    process.kill()
    await process.wait()
    threads = later(store)
    assert (await threads.get(thread)).phase == "executing"
    done = await threads.run(thread, Agent(Payer()))
    assert (done.status, len(done.output)) == ("completed", 3)
    session = await threads.sessions.open(thread.id)
    assert session.state.spent == 3
    assert [entry.input["amount"] async for entry in session.log(kinds={"call"})] == [1, 2]
    assert session.agent.status.answers == 2
    items = (await threads.items(thread)).items
    assert [item["type"] for item in items] == [
        *("message", "function_call", "function_call", "function_call_output", "function_call_output", "message")
    ]
