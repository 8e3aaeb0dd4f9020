"""Sessions in two tiers: where they are, and what happens when a tier is away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateroom.errors import (
    ForeignStore,
    SessionClosed,
    SessionExpired,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.store import Commit, MemoryStore, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import everything
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW
from stateroom.store.tiered import TieredStore
from tests.messages import raises
from tests.servers.redis import RedisServer
from tests.store.conftest import Fresh
from tests.store.rooms import visit
from tests.store.tiers import process, tiered

COLD = NOW + 100
"""A time at which everything has cooled."""


@pytest.fixture
def warm() -> Store:
    return MemoryStore()


@pytest.fixture
def cold() -> Store:
    return MemoryStore()


@pytest.fixture
async def store(warm: Store, cold: Store) -> Store:
    return process(warm, cold, cool=50)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(durable=True) as server:
        yield server


def impatient(server: RedisServer) -> str:
    return f"{server.url}?timeout=0"


async def names(tier: Store) -> set[str]:
    return {head.id for head in await tier.heads()}


def tiers_of(store: Store) -> dict[str, str]:
    assert isinstance(store, TieredStore)
    return store.tiers()


# Down.


async def test_a_session_moves_down_when_nothing_was_added_for_a_while(store: Store, warm: Store, cold: Store) -> None:
    await make.session(store, "idle", revision=2)
    await make.session(store, "busy")
    await store.append(Commit("busy", make.entry(2, at=NOW + 40), expires=LATER))
    await make.session(store, "new", created=NOW + 30)
    await store.sweep(NOW + 49)
    assert await names(cold) == set()
    await store.sweep(NOW + 50)
    assert await names(warm) == {"busy", "new"}
    assert await names(cold) == {"idle"}
    await store.sweep(NOW + 90)
    assert await names(cold) == {"idle", "busy", "new"}


async def test_a_session_that_is_renewed_or_held_stays_up(store: Store, warm: Store) -> None:
    for name in ("idle", "renewed", "held"):
        await make.session(store, name)
    await store.sweep(NOW + 10)
    await store.touch("renewed", now=NOW + 20, expires=MUCH_LATER)
    await store.lease("held", "me", now=NOW, until=NOW + 60)
    await store.sweep(NOW + 50)
    assert await names(warm) == {"renewed", "held"}
    await store.sweep(NOW + 60)
    assert await names(warm) == {"renewed"}
    await store.sweep(NOW + 100)
    assert await names(warm) == set()


async def test_a_family_moves_when_all_of_it_is_idle(store: Store, warm: Store, cold: Store) -> None:
    await make.session(store, revision=2)
    await make.fork(store, "fork", "room", 1)
    await make.fork(store, "late", "fork", 1, created=NOW + 90)
    await store.sweep(COLD)
    assert await names(cold) == set()
    await store.sweep(NOW + 140)
    assert await names(warm) == set()
    assert await names(cold) == {"room", "fork", "late"}
    await store.append(Commit("late", make.entry(2, at=NOW + 150), expires=LATER))
    assert await names(warm) == {"room", "fork", "late"}


# At rest.


async def test_what_rests_can_be_read_where_it_is(store: Store, warm: Store) -> None:
    blobs = make.blobs(b"large")
    await store.create(make.head(revision=1), [make.entry(1, "call")], Snapshot(1, b"one"), blobs)
    before = await everything(store, "room")
    await store.sweep(COLD)
    assert await everything(store, "room") == before
    assert await store.find_call("room", "call") == make.entry(1, "call")
    assert await store.blobs("room", [*blobs]) == blobs
    assert await store.children("room") == []
    assert (await store.size("room")).rows == 1
    assert await store.count(NOW) == 1
    assert (await store.maintenance.sizes())["sessions"].rows == 1
    await store.release("room", "nobody")
    assert await names(warm) == set()


async def test_what_cannot_be_changed_is_not_moved_for_that(store: Store, warm: Store) -> None:
    await make.session(store, "closed")
    await store.append(Commit("closed", make.entry(2), expires=LATER, closes=True))
    await make.session(store, "expired", expires=COLD + 1)
    await store.sweep(COLD)
    for attempt in (
        store.append(Commit("closed", make.entry(3, at=COLD), expires=LATER)),
        store.touch("closed", now=COLD, expires=LATER),
    ):
        with pytest.raises(SessionClosed):
            await attempt
    with pytest.raises(SessionExpired):
        await store.touch("expired", now=COLD + 1, expires=LATER)
    with raises(StoreError):
        await store.create(make.head("closed"))
    assert await names(warm) == set()
    head = await store.lease("closed", "me", now=COLD, until=LATER)
    assert (head.holder, head.fence, head.closed) == ("me", 1, True)


# Up.


async def test_whatever_changes_a_session_brings_it_back(store: Store, warm: Store) -> None:
    for name in ("append", "touch", "lease", "fork"):
        await make.session(store, name)
    await store.sweep(COLD)
    await store.append(Commit("append", make.entry(2), expires=LATER))
    await store.touch("touch", now=NOW, expires=MUCH_LATER)
    assert (await store.lease("lease", "me", now=NOW, until=LATER)).fence == 1
    await make.fork(store, "child", "fork", 1)
    assert await names(warm) == {"append", "touch", "lease", "fork", "child"}
    assert (await store.head("touch")).expires == MUCH_LATER
    assert await store.count(NOW) == 5
    assert (await store.maintenance.sizes())["sessions"].rows == 5
    assert await store.maintenance.orphans() == []


async def test_a_copy_of_what_went_up_goes_with_it(store: Store, cold: Store) -> None:
    for name in ("expires", "deleted", "parent"):
        await make.session(store, name, expires=MUCH_LATER)
    await make.fork(store, "fork", "parent", 1, expires=MUCH_LATER)
    await store.sweep(COLD)
    for name in ("expires", "deleted", "fork"):
        await store.touch(name, now=NOW, expires=LATER)
    assert await names(cold) == {"expires", "deleted", "parent", "fork"}
    await store.delete("deleted")
    assert await store.sweep(LATER) == 2
    assert await names(cold) == {"parent"}
    with pytest.raises(UnknownSession):
        await store.head("expires")
    await store.create(make.head("expires"))


# Lost.


async def test_a_session_that_the_warm_tier_has_lost_is_not_continued_from_the_copy(
    store: Store, warm: Store, cold: Store
) -> None:
    await make.session(store, revision=2)
    await store.sweep(COLD)
    await store.append(Commit("room", make.entry(3), expires=LATER))
    await warm.delete("room")
    for call in (
        store.head("room"),
        store.load("room"),
        store.entries("room"),
        store.append(Commit("room", make.entry(3), expires=LATER)),
        store.lease("room", "me", now=NOW, until=LATER),
        store.create(make.head()),
    ):
        with raises(StoreError):
            await call
    assert await store.maintenance.orphans() == [
        "session 'room', which the warm tier has lost; the cold tier has revision 2"
    ]
    assert await names(store) == {"room"}


async def test_one_may_go_on_from_the_copy_knowingly(warm: Store, cold: Store) -> None:
    inner = process(warm, cold, cool=50)
    store = TieredStore(inner)
    await make.session(store, revision=2)
    await store.sweep(COLD)
    await store.append(Commit("room", make.entry(3), expires=LATER))
    await warm.delete("room")
    assert await store.adopt("room") == make.head(revision=2)
    await store.append(Commit("room", make.entry(3, "again"), expires=LATER))
    assert await store.maintenance.orphans() == []
    assert await store.adopt("room") == make.head(revision=3)  # nothing to adopt


async def test_a_lost_session_can_be_deleted_and_a_closed_one_is_whole(store: Store, warm: Store) -> None:
    await make.session(store, "lost")
    await make.session(store, "closed", revision=0)
    await store.append(Commit("closed", make.entry(1), expires=LATER, closes=True))
    before = await everything(store, "closed")
    await store.sweep(COLD)
    await store.touch("lost", now=NOW, expires=LATER)
    await store.lease("closed", "me", now=NOW, until=NOW)
    for name in ("lost", "closed"):
        await warm.delete(name)
    await store.delete("lost")
    with pytest.raises(UnknownSession):
        await store.head("lost")
    assert await everything(store, "closed") == before
    await make.fork(store, "fork", "closed", 1)
    assert await names(warm) == {"closed", "fork"}


async def test_what_was_lost_expires(store: Store, warm: Store, cold: Store) -> None:
    for number in range(120):
        await make.session(store, f"room {number}", created=NOW + number / 10)
    await store.sweep(COLD)
    for name in ("room 3", "room 110"):
        await store.touch(name, now=NOW, expires=LATER + 10)
        await warm.delete(name)
    swept = [await store.sweep(LATER) for _ in range(3)]
    assert (sum(swept), await names(cold)) == (120, set())


# Down and up again.


@pytest.mark.parametrize("kind", ["postgresql", "file", pytest.param("s3", marks=pytest.mark.more("time"))])
@pytest.mark.parametrize("durable", ["warm", "cold"])
async def test_redis_over_another_store(fresh: Fresh, kind: str, durable: str) -> None:
    """A family that rests, goes on and rests again is the same after each, in all that can be asked."""
    url = tiered(fresh("redis"), fresh(kind), durable=durable, cool=1)
    async with open_store(url) as one, open_store(url) as two:
        entries = [make.entry(number, f"call {number}") for number in (1, 2, 3)]
        await one.create(make.head("a/'\n", revision=3, fence=7), entries, Snapshot(3, b"three"), make.blobs(b"large"))
        await make.fork(one, "fork", "a/'\n", 2, revision=4)
        await one.lease("fork", "me", now=NOW, until=NOW + 1)
        for turn in range(3):
            before = [await everything(two, name) for name in ("a/'\n", "fork")]
            assert await one.sweep(NOW + 10) == 0
            assert [await everything(two, name) for name in ("a/'\n", "fork")] == before
            assert [head.id for head in await two.children("a/'\n")] == ["fork"]
            assert await two.count(NOW) == 2
            entry = make.entry(5 + turn, f"turn {turn}")
            blobs = make.blobs(b"%d" % turn)
            await two.append(
                Commit("fork", entry, expires=LATER, fence=1, snapshot=Snapshot(5 + turn, b""), blobs=blobs)
            )
            assert await one.find_call("fork", f"turn {turn}") == entry
            assert await one.blobs("fork", [*blobs]) == blobs
            assert (await one.load("fork")).head.revision == 5 + turn
        assert await one.prune("fork", 6) == 3
        pruned = await everything(two, "fork")
        await two.sweep(NOW + 10)
        assert await everything(one, "fork") == pruned
        assert await one.maintenance.orphans() == []
        assert await two.sweep(LATER) == 2
        assert await one.heads() == []


# Away.


async def test_without_the_warm_tier_what_rests_can_be_read(
    tmp_path: Path, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(tiered(impatient(server), f"sqlite:///{tmp_path}/cold.db", cool=50)) as store:
        await make.session(store, "rests", revision=2)
        await make.session(store, "works", created=COLD)
        await store.sweep(COLD)
        before = await everything(store, "rests")
        server.kill()
        assert await everything(store, "rests") == before
        for call in (
            store.head("works"),
            store.head("unknown"),
            store.append(Commit("works", make.entry(2), expires=LATER)),
            store.append(Commit("rests", make.entry(3), expires=LATER)),
            store.create(make.head("new")),
            store.heads(),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        assert await store.count(NOW) == 1
        assert await store.sweep(COLD) == 0
        assert "cannot be reached" in tiers_of(store)["warm"]
        assert tiers_of(store)["cold"].endswith(": reachable")
        server.restart()
        await store.append(Commit("works", make.entry(2), expires=LATER))
        await store.append(Commit("rests", make.entry(3), expires=LATER))
        assert tiers_of(store)["warm"].endswith(": reachable")
    said = [record.getMessage() for record in caplog.records if record.name == "stateroom.store.tiered.tier"]
    assert [("cannot be reached" in text, "can be reached again" in text) for text in said] == [
        (True, False),
        (False, True),
    ]


async def test_without_the_cold_tier_what_is_warm_goes_on(tmp_path: Path, server: RedisServer) -> None:
    async with open_store(tiered(f"sqlite:///{tmp_path}/warm.db", impatient(server), cool=50)) as store:
        await make.session(store, "rests")
        await make.session(store, "works", created=COLD)
        await store.sweep(COLD)
        server.kill()
        await store.append(Commit("works", make.entry(2, at=COLD), expires=LATER))
        await store.touch("works", now=COLD, expires=MUCH_LATER)
        await make_fork_refused(store)
        assert (await store.load("works")).head.revision == 2
        for call in (
            store.head("rests"),
            store.head("unknown"),
            store.append(Commit("rests", make.entry(2), expires=LATER)),
            store.heads(),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        assert await store.count(NOW) == 1
        with pytest.raises(StoreUnavailable):
            await store.sweep(MUCH_LATER)
        assert (await store.head("works")).revision == 2
        server.restart()
        await store.append(Commit("rests", make.entry(2), expires=LATER))
        assert await store.count(NOW) == 2


async def make_fork_refused(store: Store) -> None:
    """Whether an id is free nobody knows without the cold tier."""
    with pytest.raises(StoreUnavailable):
        await make.fork(store, "fork", "works", 1)


@pytest.mark.parametrize("durable", ["warm", "cold"])
async def test_a_tier_that_is_away_at_first_may_come_later(tmp_path: Path, server: RedisServer, durable: str) -> None:
    server.kill()
    url = tiered(impatient(server), f"sqlite:///{tmp_path}/cold.db", durable=durable)
    async with open_store(url) as store:
        assert "cannot be reached" in tiers_of(store)["warm"]
        server.restart()
        await make.session(store)
        assert (await store.load("room")).head.revision == 1
    async with open_store(url) as store:
        assert (await store.head("room")).revision == 1


# Copies.


async def test_a_commit_is_in_the_cold_tier_when_it_is_acknowledged(tmp_path: Path, server: RedisServer) -> None:
    cold_url = f"sqlite:///{tmp_path}/cold.db"
    async with open_store(tiered(server.url, cold_url, durable="cold")) as store, open_store(cold_url) as cold:
        await make.session(store)
        await store.append(Commit("room", make.entry(2), expires=LATER, snapshot=Snapshot(2, b"two")))
        before = await everything(cold, "room")
        assert await everything(store, "room") == before
        server.ask("FLUSHALL")  # which nobody minds
        assert await everything(store, "room") == before
        server.kill()
        assert await everything(store, "room") == before
        await store.append(Commit("room", make.entry(3), expires=LATER))
        await make.fork(store, "fork", "room", 2)
        assert await store.sweep(LATER) == 2
        assert await store.heads() == []


async def test_loads_come_from_copies_that_are_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RedisServer
) -> None:
    monkeypatch.setattr("stateroom.store.tiered.durable_cold.DOWN_SECONDS", 0.0)
    cold_url = f"sqlite:///{tmp_path}/cold.db"
    url = tiered(f"{server.url}?prefix=a:", cold_url, durable="cold", cool=50)
    async with open_store(url) as store, open_store(f"{server.url}?prefix=a:") as copies, open_store(cold_url) as cold:
        await make.session(store, revision=2)
        await make.fork(store, "fork", "room", 1, revision=3)
        for name in ("room", "fork"):
            assert await copies.entries(name) == await cold.entries(name)
        await store.append(Commit("room", make.entry(3), expires=LATER, snapshot=Snapshot(3, b"three")))
        await cold.append(
            Commit("room", make.entry(4), expires=LATER)
        )  # as another process does while the warm tier is away
        assert (await copies.head("room")).revision == 3
        assert (await store.load("room")).entries == [make.entry(4)]
        assert (await copies.load("room")).entries == [make.entry(4)]
        await store.append(Commit("room", make.entry(5), expires=LATER))
        assert [entry.revision for entry in await copies.entries("room")] == [4, 5]
        assert await store.entries("room", after=3) == [make.entry(4), make.entry(5)]
        assert [entry.revision for entry in await store.entries("room")] == [1, 2, 3, 4, 5]
        assert (await store.load("room", 2)).entries == [make.entry(1), make.entry(2)]
        await store.sweep(NOW + 50)
        assert await names(copies) == set()
        assert await names(store) == {"room", "fork"}


async def test_a_warm_tier_that_is_away_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RedisServer
) -> None:
    monkeypatch.setattr("stateroom.store.tiered.durable_cold.DOWN_SECONDS", 600.0)
    async with open_store(tiered(server.url, f"sqlite:///{tmp_path}/cold.db", durable="cold")) as store:
        await make.session(store)
        server.kill()
        await store.append(Commit("room", make.entry(2), expires=LATER))
        server.restart()
        await store.append(Commit("room", make.entry(3), expires=LATER))
        assert (await store.load("room")).head.revision == 3
    async with open_store(server.url) as copies:
        assert (await copies.head("room")).revision == 1


async def test_a_copy_of_another_session_of_that_name_is_not_read(tmp_path: Path) -> None:
    warm_url, cold_url = f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db"
    async with open_store(tiered(warm_url, cold_url, durable="cold")) as store, open_store(cold_url) as cold:
        await make.session(store, revision=3)
        await cold.delete("room")
        entry = make.entry(1, body=b"another")
        await cold.create(make.head(created=NOW + 1, revision=1), [entry])
        assert await store.entries("room") == [entry]
        assert (await store.load("room")).entries == [entry]
        with pytest.raises(UnknownSession):
            await store.blobs("nobody", [])


# URLs.


async def test_a_tier_that_is_something_else_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"not a database, and long enough to be told from one" * 100)
    with pytest.raises(ForeignStore):
        await visit(tiered("memory://", f"sqlite:///{tmp_path}/other.db"))


async def test_no_password_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = tiered("redis://:secret@127.0.0.1:1/0?timeout=0", "memory://")
    async with open_store(url) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.head("room")
        assert "secret" not in str(refused.value) + str(tiers_of(store)) + caplog.text
        assert "cannot be reached" in caplog.text


async def test_tiers_have_options_of_their_own(tmp_path: Path) -> None:
    body = b"a" * 10_000
    cold_url = f"sqlite:///{tmp_path}/cold.db"
    async with open_store(tiered("memory://", f"{cold_url}?compress=zstd", cool=50)) as store:
        await store.create(make.head(revision=1), [make.entry(1, body=body)])
        await store.sweep(COLD)
        assert (await store.entries("room"))[0].body == body
    async with open_store(cold_url) as plain:
        assert (await plain.size("room")).bytes < 1_000
