"""Stores that share sessions, of one process or several: nothing is lost to another, to a kill, or to a full disk."""

import asyncio
import random
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stateroom.store import open_store
from tests.patience import PATIENCE
from tests.processes import Start, line, starting
from tests.store.conftest import Fresh
from tests.store.rooms import begin, head

LONG = pytest.mark.more("time")


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture
def url(kind: str, fresh: Fresh) -> str:
    return fresh(kind)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with starting(str(Path(__file__).with_name("worker.py"))) as start:
        yield start


async def begin_together(start: Start, *commands: tuple[str, str, str]) -> list[Process]:
    """Processes that begin at the same moment."""
    processes = [await start(*command) for command in commands]
    for process in processes:
        assert await line(process) == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    return processes


async def finish(processes: list[Process]) -> list[str]:
    """Wait for the processes to succeed; what they said."""
    said = [await asyncio.wait_for(process.communicate(), PATIENCE) for process in processes]
    assert {process.returncode for process in processes} == {0}
    return [output.decode() for output, _ in said]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_processes_lose_no_append(url: str, start: Start) -> None:
    names = ("one", "two", "three")
    async with open_store(url) as store:
        await begin(store)
        await finish(await begin_together(start, *(("append", url, name) for name in names)))
        entries = await store.entries("room")
    assert [entry.revision for entry in entries] == list(range(1, 302))
    for name in names:
        mine = [entry.call_id for entry in entries if str(entry.call_id).startswith(f"{name}/")]
        assert mine == [f"{name}/{number}" for number in range(100)]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_processes_that_open_a_fresh_store_at_once_all_succeed(url: str, start: Start) -> None:
    names = [f"room {number}" for number in range(6)]
    await finish(await begin_together(start, *(("create", url, name) for name in names)))
    async with open_store(url) as store:
        assert sorted(head.id for head in await store.heads()) == names
        for name in names:
            assert [entry.body for entry in await store.entries(name)] == [name.encode()]


@pytest.mark.parametrize("kind", ["sqlite", "file", "redis", "postgresql"])
async def test_stores_of_one_process_that_open_a_fresh_place_at_once_all_succeed(kind: str, fresh: Fresh) -> None:
    for _ in range(10):
        async with AsyncExitStack() as stack:
            url = fresh(kind)
            stores = await asyncio.gather(*(stack.enter_async_context(open_store(url)) for _ in range(8)))
            await begin(stores[0])
            assert [await store.head("room") for store in stores] == [head()] * 8


@pytest.mark.parametrize("kind", ["sqlite", "file", "redis", "postgresql"])
async def test_many_sweepers_remove_each_session_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(url)) for _ in range(4)]
        for number in range(30):
            await stores[0].create(head(f"room {number}", expires=10.0))
            for fork in range(number % 3):
                await stores[0].create(head(f"fork {number} {fork}", expires=10.0, parent=f"room {number}"))
        await stores[0].create(head("living", parent="room 3"))
        swept = await asyncio.gather(*(store.sweep(10.0) for store in stores * 2))
        swept.append(await stores[0].sweep(10.0))  # a parent is left, if each left it to another
        assert sum(swept) == 59
        assert {head.id for head in await stores[0].heads()} == {"room 3", "living"}
        assert await stores[0].maintenance.orphans() == []


@pytest.mark.parametrize("kind", ["sqlite", "file", pytest.param("s3", marks=LONG)])
async def test_a_killed_process_loses_nothing_that_was_acknowledged(url: str, start: Start) -> None:
    async with open_store(url) as store:
        await begin(store)
    acknowledged, chance = 1, random.Random(7)
    for life in range(4):
        (process,) = await begin_together(start, ("write_for_ever", url, f"life {life}"))
        for _ in range(chance.randint(1, 80)):
            acknowledged = int(await line(process))
        process.kill()
        rest, _ = await process.communicate()
        acknowledged = max([acknowledged, *(int(each) for each in rest.decode().split("\n")[:-1])])
        async with open_store(url) as store:
            revision = (await store.head("room")).revision
            assert revision in (acknowledged, acknowledged + 1)
            assert [entry.revision for entry in await store.entries("room")] == list(range(1, revision + 1))


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_a_full_disk_refuses_whole_appends_and_passes(url: str, start: Start, tmp_path: Path) -> None:
    async with open_store(url) as store:
        await begin(store)
        (said,) = await finish(await begin_together(start, ("fill_the_disk", url, "call")))
        refusal, unharmed, revision = said.splitlines()
        assert refusal
        assert unharmed == "True"
        assert 2 < int(revision) < 100
        entries = await store.entries("room")
        assert [entry.call_id for entry in entries[1:]] == [f"call/{number}" for number in range(2, int(revision) + 1)]
        assert entries[-1].body == b"after"
    assert not [*tmp_path.rglob(".unfinished/*")]  # noqa: ASYNC240 - a test may wait for a file
