"""The index of a Redis store, and those who are cut off between two commands: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from uuid import uuid4

import pytest

from stateroom.errors import StateroomError, UnknownSession
from stateroom.store import Commit, Snapshot, Store
from tests.patience import PATIENCE
from tests.servers.proxy import Fault, Proxy
from tests.servers.redis import RedisKeys
from tests.store.rooms import bare, entry, head

SOON, LATER = 10.0, 20.0


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?prefix={uuid4().hex}:"


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[Store]:
    """The same store behind the proxy, with nobody who tries again."""
    async with bare(proxy.url) as opened:
        yield opened


async def check(store: Store, keys: RedisKeys, *, exact: bool = True) -> None:
    """Whatever is listed can be read, and is swept when it has expired; in the end nothing is left."""
    heads = await store.heads()
    for each in heads:
        assert await store.head(each.id) == each
    for moment in sorted({each.expires for each in heads}) if exact else ():
        await store.sweep(moment)
        forked = {each.parent for each in await store.heads()}
        assert [each for each in await store.heads() if each.expires <= moment and each.id not in forked] == []
    for _ in range(2):
        await store.sweep(LATER)
    assert keys.all() == []


# Those who are cut off.

Work = Callable[[Store], Awaitable[object]]

WORKS: dict[str, Work] = {
    "create": lambda store: store.create(head("new", expires=SOON), [entry(1)], Snapshot(1, b"state")),
    "fork": lambda store: store.create(head("new", expires=SOON, parent="room")),
    "append": lambda store: store.append(Commit("room", entry(2), expires=SOON, closes=True)),
    "touch": lambda store: store.touch("room", now=0.0, expires=LATER - 5),
    "delete a fork": lambda store: store.delete("fork"),
    "delete a parent": lambda store: store.delete("room"),
    "sweep": lambda store: store.sweep(SOON),
}


@pytest.mark.parametrize("care", ["sweep", "vacuum"])
@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.ANSWER_LOST])
@pytest.mark.parametrize("name", WORKS)
async def test_who_is_cut_off_at_any_command_leaves_nothing_that_care_does_not_remove(
    store: Store, far: Store, proxy: Proxy, keys: RedisKeys, name: str, fault: Fault, care: str
) -> None:
    for command in count():
        await store.create(head("room", expires=LATER))
        await store.create(head("fork", expires=SOON, parent="room"))
        faults = proxy.faults
        proxy.fail(*[Fault.NONE] * command, fault)
        with suppress(StateroomError):
            await WORKS[name](far)
        if care == "vacuum":
            await store.maintenance.vacuum()
            assert await store.maintenance.orphans() == []
        await check(store, keys, exact=care == "vacuum")
        if proxy.faults == faults:
            break
    assert command > 0


ACTS: dict[str, Work] = {
    "sweep": lambda store: store.sweep(SOON),
    "vacuum": lambda store: store.maintenance.vacuum(),
    "touch": lambda store: store.touch("room", now=0.0, expires=SOON),
    "delete": lambda store: store.delete("room"),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", ["create", "fork", "append", "touch"])
async def test_who_is_overtaken_at_any_command_does_no_harm(
    store: Store, far: Store, proxy: Proxy, keys: RedisKeys, name: str, act: str
) -> None:
    """A creation begins again, and a note that comes late does not undo a later one."""
    loop = asyncio.get_running_loop()

    async def overtake() -> None:
        with suppress(StateroomError):
            await ACTS[act](store)

    for command in count():
        await store.create(head("room", expires=LATER))
        await store.create(head("fork", expires=SOON, parent="room"))
        proxy.interrupt(command, lambda: asyncio.run_coroutine_threadsafe(overtake(), loop).result(PATIENCE))
        outcome = await asyncio.gather(WORKS[name](far), return_exceptions=True)
        if name == "create":
            assert outcome[0] is None
            assert (await store.load("new")).snapshot == Snapshot(1, b"state")
        assert await store.maintenance.orphans() == []
        await check(store, keys)
        if proxy.interrupts:
            break
    assert command > 0


# What the index is told.


@pytest.mark.parametrize("look", ["sweep", "count"])
async def test_a_session_that_lives_longer_than_the_index_knows_is_not_removed(store: Store, look: str) -> None:
    await store.create(head(expires=SOON))
    await store.append(Commit("room", entry(2), expires=LATER))
    for _ in range(2):  # the first look corrects the index
        assert await (store.sweep(SOON) if look == "sweep" else store.count(SOON)) == (look == "count")
    assert await store.count(LATER) == 0
    assert await store.sweep(LATER) == 1


async def test_an_index_that_was_lost_is_built_anew(store: Store, keys: RedisKeys) -> None:
    for number in range(3):
        await store.create(head(f"room {number}", expires=SOON), [entry(1)], Snapshot(1, b"state"))
        await store.create(head(f"fork {number}", expires=SOON, parent=f"room {number}"))
    await store.append(Commit("room 1", entry(2), expires=SOON, closes=True))
    before = await store.heads()
    keys.remove(*(key for key in keys.all() if key.startswith("{index}") or key.endswith(":forks")))
    assert await store.heads() == []
    assert len(await store.maintenance.orphans()) == 9
    await store.maintenance.vacuum()
    assert await store.heads() == before
    assert await store.maintenance.orphans() == []
    assert await store.count(0.0) == 5
    assert [head.id for head in await store.children("room 2")] == ["fork 2"]
    assert await store.sweep(SOON) == 6
    assert keys.all() == []


async def test_parts_without_a_session_are_told_of_and_removed(store: Store, keys: RedisKeys) -> None:
    await store.create(head("room"), [entry(1)], Snapshot(1, b"state"))
    await store.create(head("fork", parent="room"))
    keys.remove("{/room}")
    assert await store.maintenance.orphans() == [
        "forks of session 'room', which does not exist",
        "snapshots of session 'room', which does not exist",
        "session 'room' in the index, which does not exist",
        "session 'fork', whose parent 'room' does not exist",
    ]
    await store.maintenance.vacuum()
    assert await store.maintenance.orphans() == ["session 'fork', whose parent 'room' does not exist"]
    assert await store.heads() == [head("fork", parent="room")]  # what it has of its own can be read
    with pytest.raises(UnknownSession):
        await store.head("room")
