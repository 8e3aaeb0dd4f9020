"""Servers that die under load, and a network that loses what it carries: callers notice nothing but the time."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from stateroom import Session, open_store
from stateroom.errors import StoreUnavailable
from tests.faults.test_workers import counting, problems
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.proxy import FAULTS, Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.more("time")

SESSIONS, CALLS = 8, 25

Server = PostgreSQLServer | RedisServer


@pytest.fixture(params=["redis", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, that loses nothing it has acknowledged."""
    with ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(RedisServer(durable=True))
        else:
            yield stack.enter_context(PostgreSQLServer(quick=False))


async def count(session: Session[Any], reached: asyncio.Event) -> None:
    """Call, and have each call answered, whatever happens."""
    for number in range(CALLS):
        result = await session.call("increment", call_id=f"call {number}")
        assert result.output == number + 1
        if number == CALLS // 3:
            reached.set()


async def counted(url: str) -> None:
    """All that was acknowledged is there, once."""
    async with open_store(url) as store:
        sessions = counting(store)
        for number in range(SESSIONS):
            session = await sessions.open(f"room {number}")
            assert session.state.value == CALLS
            calls = [entry.call_id async for entry in session.log() if entry.kind == "call"]
            assert calls == [f"call {number}" for number in range(CALLS)]
        assert not await problems(store)


async def test_a_server_that_is_killed_under_load_and_starts_again_is_waited_for(server: Server) -> None:
    url = f"{server.url}?timeout=60"
    async with open_store(url) as store:
        sessions = counting(store)
        reached = asyncio.Event()
        rooms = [await sessions.seed({}, session_id=f"room {number}") for number in range(SESSIONS)]
        at_work = asyncio.gather(*(count(room, reached) for room in rooms))
        await reached.wait()
        await asyncio.to_thread(server.restart)
        await at_work
    await counted(url)


async def test_a_server_that_stays_away_is_a_clear_error_and_nothing_is_lost(server: Server) -> None:
    async with open_store(f"{server.url}?timeout=2") as store:
        session = await counting(store).seed({})
        await session.call("increment", call_id="one")
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable):
            await session.call("increment", call_id="two")
        await asyncio.to_thread(server.restart)
        assert (await session.call("increment", call_id="two")).output == 2
        assert (await session.call("increment", call_id="one")).output == 1


@pytest.mark.parametrize("seed", range(2))
async def test_a_network_that_delays_cuts_and_halves_what_it_carries_loses_and_doubles_nothing(
    server: Server, seed: int
) -> None:
    with Proxy(server.url) as proxy:
        async with open_store(f"{proxy.url}?timeout=60") as store:
            sessions = counting(store)
            rooms = [await sessions.seed({}, session_id=f"room {number}") for number in range(SESSIONS)]
            proxy.delay = 0.001
            proxy.fail(*FAULTS)  # a busy machine sends few requests, and chance may spare them all
            proxy.fail_at_random(0.2, Random(seed))
            await asyncio.gather(*(count(room, asyncio.Event()) for room in rooms))
            assert proxy.faults >= len(FAULTS)
            proxy.fail_at_random(0, Random())
    await counted(server.url)
