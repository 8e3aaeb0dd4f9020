"""Stores behind a network that loses, halves and delays messages: nothing is lost, and nothing done twice."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from random import Random
from urllib.parse import parse_qsl, urlsplit

import pytest

from stateroom.errors import Conflict, StoreUnavailable
from stateroom.store import Commit, Store, open_store
from tests.servers.proxy import FAULTS, Fault, Proxy
from tests.store.conftest import Fresh
from tests.store.rooms import begin, entry

SEED = entry(1)
an_entry = partial(entry, body=bytes(range(256)) * 8)


@pytest.fixture(params=["redis", "postgresql", pytest.param("s3", marks=pytest.mark.more("time"))])
def direct(request: pytest.FixtureRequest, fresh: Fresh) -> str:
    """The URL of a fresh store on a real server."""
    return fresh(request.param)


@pytest.fixture
def proxy(direct: str) -> Iterator[Proxy]:
    with Proxy(server_of(direct)) as proxy:
        yield proxy


@pytest.fixture
def far(direct: str, proxy: Proxy) -> str:
    """The URL of the same store behind a proxy."""
    return direct.replace(server_of(direct), proxy.url)


def server_of(url: str) -> str:
    """The URL of the server that a store uses."""
    return dict(parse_qsl(urlsplit(url).query)).get("endpoint", url)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_commit_is_done_once_whatever_becomes_of_its_messages(
    direct: str, far: str, proxy: Proxy, fault: Fault
) -> None:
    async with open_store(far) as store:
        await begin(store)
        for revision in range(2, 8):
            proxy.fail(*[fault] * (revision % 3))
            await store.append(Commit("room", an_entry(revision, str(revision))))
        assert proxy.faults == 6
    async with open_store(direct) as store:
        assert await store.entries("room") == [SEED, *[an_entry(number, str(number)) for number in range(2, 8)]]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_session_is_created_read_and_deleted_whatever_becomes_of_the_messages(
    direct: str, far: str, proxy: Proxy, fault: Fault
) -> None:
    async with open_store(far) as store, open_store(direct) as other:
        assert await store.heads() == []
        proxy.fail(fault)
        await begin(store)
        assert await other.entries("room") == [SEED]
        proxy.fail(fault)
        assert (await store.load("room")).entries == [SEED]
        proxy.fail(fault)
        assert (await store.lease("room", "me", now=1.0, until=2.0)).fence == 1
        proxy.fail(fault)
        await store.delete("room")
        assert await other.heads() == []
        assert proxy.faults == 4


async def test_writers_over_a_bad_network_lose_nothing(direct: str, far: str, proxy: Proxy) -> None:
    numbers = count()

    async def write(store: Store) -> list[str]:
        done: list[str] = []
        while len(done) < 10:
            call_id = str(next(numbers))
            try:
                await store.append(Commit("room", an_entry((await store.head("room")).revision + 1, call_id)))
                done.append(call_id)
            except Conflict:
                continue
        return done

    async with AsyncExitStack() as opened, open_store(direct) as store:
        await begin(store)
        writers = [await opened.enter_async_context(open_store(far)) for _ in range(4)]
        proxy.fail_at_random(0.1, Random(4))
        done = [call_id for some in await asyncio.gather(*map(write, writers)) for call_id in some]
        written = await store.entries("room")
    assert proxy.faults
    assert [entry.revision for entry in written] == list(range(1, 42))
    assert sorted(f"{entry.call_id}" for entry in written[1:]) == sorted(done)


async def test_a_slow_network_is_waited_for(far: str, proxy: Proxy) -> None:
    proxy.delay = 0.02
    async with open_store(far) as store:
        await begin(store)
        await asyncio.gather(*(store.append(Commit("room", an_entry(2, "a"))), store.head("room")))
        assert (await store.head("room")).revision == 2


async def test_a_network_that_stays_away_is_told_of_and_comes_back(far: str, proxy: Proxy) -> None:
    async with open_store(f"{far}&timeout=1") as store:
        await begin(store)
        proxy.refuse()
        with pytest.raises(StoreUnavailable):
            await store.append(Commit("room", an_entry(2, "a")))
        proxy.accept()
        await store.append(Commit("room", an_entry(2, "a")))
        proxy.cut()
        assert (await store.head("room")).revision == 2


async def test_a_network_that_comes_back_in_time_was_never_away(far: str, proxy: Proxy) -> None:
    async with open_store(far) as store:
        await begin(store)
        proxy.refuse()
        append = asyncio.create_task(store.append(Commit("room", an_entry(2, "a"))))
        done, _ = await asyncio.wait([append], timeout=0.1)
        assert not done
        proxy.accept()
        await append
        assert await store.entries("room") == [SEED, an_entry(2, "a")]
