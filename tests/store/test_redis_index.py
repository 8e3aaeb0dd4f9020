"""The index of a Redis store, and those who die between two steps: nothing is lost, and in the end nothing is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from stateroom.errors import StoreUnavailable, UnknownSession
from stateroom.store import Commit, Entry, Head, Record, Snapshot
from stateroom.store.redis import RedisStore
from stateroom.store.redis.layout import to_member
from stateroom.store.redis.lifetime import LONG_AGO

BIRTH = "0123456789abcdef"
SOON, LATER, FAR = 10.0, 20.0, 1e12


def head(session: str = "room", *, expires: float = FAR, parent: str | None = None) -> Head:
    return Head(session, "env", "owner", 0.0, expires, 1, False, parent, 1 if parent else 0)


def entry(revision: int) -> Entry:
    return Entry(revision, "call", 0.0, b"body", f"call {revision}")


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?prefix={uuid4().hex}:"


@pytest.fixture
async def store(url: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(url)
    yield store
    await store.close()


async def keys(store: RedisStore) -> list[str]:
    """What lies in the store, beside its version."""
    prefix = store._prefix
    found = sorted([key.decode().removeprefix(prefix) async for key in store._link.keys(f"{prefix}*")])
    return [key for key in found if key != "version" and ":void:" not in key]


# A beginning that does not come to its end.


@pytest.mark.parametrize("care", ["sweep", "vacuum"])
async def test_a_session_that_was_announced_and_never_created(store: RedisStore, care: str) -> None:
    await store._index.announce(head("ghost", expires=SOON), BIRTH)
    assert await store.heads() == []
    with pytest.raises(UnknownSession):
        await store.head("ghost")
    assert await store.maintenance.orphans() == ["session 'ghost' in the index, which is gone"]
    await (store.sweep(SOON) if care == "sweep" else store.maintenance.vacuum())
    assert await keys(store) == []
    await store.create(head("ghost"))
    assert await store.heads() == [head("ghost")]


@pytest.mark.parametrize("care", ["sweep", "vacuum"])
async def test_a_fork_that_was_adopted_and_never_created(store: RedisStore, care: str) -> None:
    await store.create(head("room"))
    ghost = head("ghost", expires=SOON, parent="room")
    await store._index.announce(ghost, BIRTH)
    assert (await store._lifetimes._adopt(ghost, to_member("ghost", BIRTH)))[0] is None
    assert await store.children("room") == []
    assert len(await store.maintenance.orphans()) == 2
    if care == "sweep":
        await store.delete("room")
        assert (await store.head("room")).expires == 0.0  # as long as it may still come
        assert await store.sweep(SOON) == 1
    else:
        await store.maintenance.vacuum()
        assert await store.maintenance.orphans() == []
        await store.delete("room")
    assert await keys(store) == []


@pytest.mark.parametrize("care", ["sweep", "vacuum"])
async def test_a_creation_that_is_overtaken_begins_again(
    store: RedisStore, care: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(head("room"))
    put, births = store._lifetimes._put, []

    async def slow(record: Record, birth: str, held: bytes) -> Any:
        births.append(birth)
        if len(births) == 1:
            await (store.sweep(SOON) if care == "sweep" else store.maintenance.vacuum())
        return await put(record, birth, held)

    monkeypatch.setattr(store._lifetimes, "_put", slow)
    await store.create(head("fork", expires=SOON, parent="room"))
    assert len(set(births)) == 2
    assert await store.children("room") == [head("fork", expires=SOON, parent="room")]
    assert await store.maintenance.orphans() == []
    assert await store.sweep(SOON) == 1


# An end that does not.


@pytest.mark.parametrize("care", ["sweep", "vacuum"])
async def test_a_fork_that_was_removed_without_a_word(store: RedisStore, care: str) -> None:
    await store.create(head("room", expires=SOON))
    await store.create(head("fork", expires=SOON, parent="room"))
    (member,) = [member for member in await store._index.all() if member.startswith(b"fork")]
    assert await store._lifetimes._expire(member, SOON) == b"removed"
    assert len(await store.maintenance.orphans()) == 2
    if care == "sweep":
        assert await store.sweep(SOON) == 1
    else:
        await store.maintenance.vacuum()
        assert await store.maintenance.orphans() == []
        await store.delete("room")
    assert await keys(store) == []


async def test_a_deletion_whose_rest_cannot_be_done_is_done(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create(head("room", expires=SOON))
    await store.create(head("fork", expires=SOON, parent="room"))
    with monkeypatch.context() as patch:
        patch.setattr(store._lifetimes, "_finish", refuse)
        await store.delete("fork")
    with pytest.raises(UnknownSession):
        await store.head("fork")
    await store.create(head("fork", expires=LATER, parent="room"))
    assert [head.id for head in await store.heads()] == ["room", "fork"]
    assert [head.id for head in await store.children("room")] == ["fork"]
    assert await store.sweep(SOON) == 0
    assert await store.sweep(LATER) == 2
    assert await keys(store) == []


async def refuse(*_: object) -> None:
    raise StoreUnavailable("the network is down")


async def test_many_sweepers_at_once_remove_each_session_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await RedisStore.open(url) for _ in range(4)]
        for store in stores:
            stack.push_async_callback(store.close)
        for number in range(30):
            await stores[0].create(head(f"room {number}", expires=SOON))
            for fork in range(number % 3):
                await stores[0].create(head(f"fork {number} {fork}", expires=SOON, parent=f"room {number}"))
        swept = await asyncio.gather(*(store.sweep(SOON) for store in stores))
        swept.append(await stores[0].sweep(SOON))  # a parent is left, if each left it to another
        assert sum(swept) == 60
        assert await keys(stores[0]) == []


# What the index is told.


async def test_a_sweep_corrects_what_the_index_knows(store: RedisStore) -> None:
    await store.create(head(expires=SOON))
    await store.append(Commit("room", entry(2), expires=LATER))
    assert len(await store._index.due(SOON)) == 1
    assert await store.sweep(SOON) == 0
    assert await store._index.due(SOON) == []
    assert len(await store._index.due(LATER)) == 1
    assert await store.sweep(LATER) == 1


async def test_so_does_a_count(store: RedisStore) -> None:
    await store.create(head(expires=SOON))
    await store.touch("room", now=0.0, expires=LATER)
    assert await store.count(SOON) == 1
    assert await store._index.due(SOON) == []
    assert await store.count(LATER) == 0


async def test_a_note_that_comes_late_does_not_undo_a_later_one(store: RedisStore) -> None:
    await store.create(head(expires=FAR))
    (member,) = await store._index.all()
    later = await store._lifetimes._expire(member, LONG_AGO)
    await store.touch("room", now=0.0, expires=SOON)
    await store._index.place("room", later)
    assert await store._index.due(SOON) == [member]


async def test_a_note_of_a_session_that_is_gone_leaves_nothing(store: RedisStore) -> None:
    await store.create(head(expires=FAR))
    (member,) = await store._index.all()
    note = await store._lifetimes._expire(member, LONG_AGO)
    await store.delete("room")
    await store._index.place("room", note)
    assert await keys(store) == []


@pytest.mark.parametrize("closes", [False, True])
async def test_a_note_that_was_lost_is_made_good(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    await store.create(head(expires=FAR))
    with monkeypatch.context() as patch:
        patch.setattr(store._index, "place", refuse)
        await store.append(Commit("room", entry(2), expires=SOON, closes=closes))
    assert (await store.head("room")).revision == 2
    assert await store.sweep(SOON) == 0  # later than it could be
    await store.maintenance.vacuum()
    assert await store.count(0.0) == (0 if closes else 1)
    assert await store.sweep(SOON) == 1


async def test_an_index_that_was_lost_is_built_anew(store: RedisStore) -> None:
    for number in range(3):
        await store.create(head(f"room {number}", expires=SOON), [entry(1)], Snapshot(1, b"state"))
        await store.create(head(f"fork {number}", expires=SOON, parent=f"room {number}"))
    await store.append(Commit("room 1", entry(2), expires=SOON, closes=True))
    before = await store.heads()
    for key in await keys(store):
        if key.startswith("{index}") or key.endswith(":forks"):
            await store._link.ask("DEL", store._prefix + key)
    assert await store.heads() == []
    assert len(await store.maintenance.orphans()) == 9
    await store.maintenance.vacuum()
    assert await store.heads() == before
    assert await store.maintenance.orphans() == []
    assert await store.count(0.0) == 5
    assert [head.id for head in await store.children("room 2")] == ["fork 2"]
    assert await store.sweep(SOON) == 6
    assert await keys(store) == []


async def test_parts_without_a_session_are_told_of_and_removed(store: RedisStore) -> None:
    await store.create(head("room"), [entry(1)], Snapshot(1, b"state"))
    await store.create(head("fork", parent="room"))
    await store._link.ask("DEL", store._lifetimes.keys("room").session)
    assert await store.maintenance.orphans() == [
        "forks of session 'room', which is gone",
        "snapshots of session 'room', which is gone",
        "session 'room' in the index, which is gone",
        "session 'fork', forked from session 'room', which is gone",
    ]
    await store.maintenance.vacuum()
    assert await store.maintenance.orphans() == ["session 'fork', forked from session 'room', which is gone"]
    assert await store.heads() == [head("fork", parent="room")]  # what it has of its own can be read
