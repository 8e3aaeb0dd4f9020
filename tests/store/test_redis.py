"""What is particular to Redis: its addresses, its one connection, its several keys, and what can happen to a server."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import redis
from redis.asyncio.connection import Connection

from stateroom.errors import (
    ForeignStore,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.store import Commit, Snapshot, Store, open_store, store_class
from tests.messages import raises
from tests.patience import PATIENCE
from tests.servers.redis import RedisCluster, RedisSentinel, RedisServer, wait_until
from tests.servers.tls import tls_front
from tests.store.rooms import FAR, at_last, begin, entry, head

LARGE = bytes(50_000)
RedisStore = store_class("redis://")
"""The store itself, with nobody who tries again."""


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


@pytest.fixture
def url(server: RedisServer, prefix: str) -> str:
    return f"{server.url}?prefix={prefix}"


# One command.


async def commands_for(server: RedisServer, work: Awaitable[object]) -> list[str]:
    """The names of the commands that reach the server while something is awaited."""
    with redis.Redis(port=server.port) as client, client.monitor() as monitor:
        await work
        server.ask("ECHO", "the end")
        names: list[str] = []
        while True:
            command = await asyncio.to_thread(monitor.next_command)
            if command["command"] == "ECHO the end":
                return names
            if command["client_type"] != "lua":
                names.append(command["command"].split()[0])


async def test_a_lone_append_is_one_command(server: RedisServer, store: Store) -> None:
    await begin(store, "known", "room")

    def works(room: str) -> list[Coroutine[Any, Any, object]]:
        blobs = {"aa": b"1", "bb": b"2"}
        return [
            store.append(Commit(room, entry(2))),
            store.append(Commit(room, entry(3, "call"), expires=FAR + 1)),
            store.append(Commit(room, entry(4), expires=FAR + 2, snapshot=Snapshot(4, b"state"), blobs=blobs)),
            store.touch(room, now=0.0, expires=FAR + 3),
            store.load(room),
            store.entries(room),
            store.find_call(room, "call"),
            store.blobs(room, ["aa", "bb"]),
            store.head(room),
            store.lease(room, "me", now=0.0, until=1.0),
        ]

    for work in works("known"):  # with which the server learns the scripts
        await work
    for work in works("room"):
        names = await commands_for(server, work)
        assert names in (["EVALSHA"], ["HMGET"])


async def test_appends_that_come_together_go_out_together(server: RedisServer, store: Store) -> None:
    rooms = [f"room {number}" for number in range(40)]
    await begin(store, *rooms)
    await asyncio.gather(*(store.append(Commit(room, entry(2), expires=FAR)) for room in rooms[:2]))
    with redis.Redis(port=server.port) as client:
        client.ping()
        before = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*(store.append(Commit(room, entry(2), expires=FAR)) for room in rooms[2:]))
        assert client.info("stats")["total_reads_processed"] - before <= 3  # one for the appends, one for the question
    assert {head.revision for head in await store.heads()} == {2}


async def test_a_server_that_forgot_the_scripts_is_told_them_again(server: RedisServer, store: Store) -> None:
    rooms = [f"room {number}" for number in range(30)]
    await begin(store, *rooms)
    for revision in range(2, 6):
        server.ask("SCRIPT", "FLUSH")
        await asyncio.gather(
            *(store.append(Commit(room, entry(revision, f"{revision}"), expires=FAR)) for room in rooms)
        )
    for room in rooms:
        assert [entry.revision for entry in await store.entries(room)] == [1, 2, 3, 4, 5]
    assert await commands_for(server, store.append(Commit("room 0", entry(6)))) == ["EVALSHA"]


async def test_a_load_reads_the_newest_snapshot_and_what_follows(server: RedisServer, store: Store) -> None:
    entries = [entry(revision, body=bytes(200)) for revision in range(1, 10_001)]
    await store.create(head(revision=10_000), entries, Snapshot(9_990, b"state"))

    def sent() -> int:
        stats = server.ask("INFO", "stats").decode()
        return int(stats.partition("total_net_output_bytes:")[2].split()[0])

    before = sent()
    loaded = await store.load("room")
    assert sent() - before < 20_000
    assert loaded.snapshot == Snapshot(9_990, b"state")
    assert loaded.entries == entries[9_990:]
    assert await store.entries("room") == entries


# Addresses.


async def test_databases_and_prefixes_are_stores_of_their_own(server: RedisServer, prefix: str) -> None:
    plain = f"redis://127.0.0.1:{server.port}"
    places = [f"{plain}/0?prefix={prefix}", f"{plain}/1?prefix={prefix}", f"{plain}/1?prefix={prefix}x"]
    places += [f"{server.socket_url}?db=2&prefix={prefix}"]
    for number, place in enumerate(places):
        async with open_store(place) as store:
            await begin(store, f"room {number}")
    for number, place in enumerate([*places[:3], f"{plain}/2?prefix={prefix}"]):
        async with open_store(place) as store:
            assert [head.id for head in await store.heads()] == [f"room {number}"]
            assert await store.maintenance.orphans() == []


async def test_a_prefix_can_be_any_text(server: RedisServer, prefix: str) -> None:
    odd = [f"{prefix}{text}" for text in ("*", "a", "[a-z]", "?", "{x}", "\\\\", "a b/ü%")]
    for text in odd:
        async with open_store(f"{server.url}?prefix={quote(text)}") as store:
            await begin(store, text)
    for text in odd:
        async with open_store(f"{server.url}?prefix={quote(text)}") as store:
            await store.maintenance.vacuum()
            assert await store.maintenance.orphans() == []
            assert [head.id for head in await store.heads()] == [text]


@pytest.mark.parametrize(
    "where",
    [
        "redis://127.0.0.1:1",
        "unix:///nowhere.sock",
        "redis+cluster://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/rooms",
    ],
)
async def test_where_nobody_listens_is_said_at_once(where: str) -> None:
    with pytest.raises(StoreUnavailable):
        await RedisStore.open(where)


async def test_a_password_is_needed_and_never_shown(prefix: str) -> None:
    with RedisServer(password="op@n sesame") as server:
        there = f"127.0.0.1:{server.port}/0?prefix={prefix}"
        async with open_store(f"redis://:op%40n%20sesame@{there}") as store:
            await begin(store)
        for wrong in ("redis://", "redis://:0p3n@", "redis://somebody:0p3n@"):
            with pytest.raises(StoreUnavailable) as refused:
                await RedisStore.open(wrong + there)
            assert "0p3n" not in str(refused.value)


async def test_tls_is_spoken_where_the_url_says_so(server: RedisServer, prefix: str, tmp_path: Path) -> None:
    async with tls_front(server.port, tmp_path) as (port, certificate):
        there = f"localhost:{port}/0?prefix={prefix}"
        async with open_store(f"rediss://{there}&ssl_ca_certs={certificate}") as store:
            await begin(store)
            assert await store.head("room") == head()
        with pytest.raises(StoreUnavailable):
            await RedisStore.open(f"rediss://{there}")


async def test_a_server_of_a_cluster_says_so(cluster: RedisCluster, prefix: str) -> None:
    away = next(server for server in cluster.servers if not _serves(server, f"{prefix}version"))
    with pytest.raises(StoreUnavailable):
        await RedisStore.open(f"{away.url}?prefix={prefix}")


# What lies there already.


@pytest.mark.parametrize("command", [
    ("SET", "version", "2"),
    ("SET", "version", "theirs"),
    ("RPUSH", "version", "theirs"),
])  # fmt: skip
async def test_what_is_not_ours_is_refused_and_left_alone(
    server: RedisServer, prefix: str, url: str, command: tuple[str, ...]
) -> None:
    name, key, value = command
    server.ask(name, prefix + key, value)
    before = server.ask("DUMP", prefix + key)
    with raises(ForeignStore):
        await RedisStore.open(url)
    assert server.ask("KEYS", f"{prefix}*") == [f"{prefix}version".encode()]
    assert server.ask("DUMP", prefix + key) == before


# What can happen to a connection.


async def test_a_connection_that_is_cut_while_idle_is_made_again(server: RedisServer, store: Store) -> None:
    await begin(store)
    for revision in range(2, 5):
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        commit = Commit("room", entry(revision), expires=FAR)
        await at_last(partial(store.append, commit))  # until the end of the connection has come through
    assert [entry.revision for entry in await store.entries("room")] == [1, 2, 3, 4]


async def test_a_server_that_does_not_answer_is_given_up(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.redis.connection.ANSWER_SECONDS", 1)
    with RedisServer() as server:
        store = await RedisStore.open(f"{server.url}?prefix={prefix}")
        await begin(store)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(StoreUnavailable):
                    await store.append(Commit("room", entry(2), expires=FAR))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        revision = (await store.head("room")).revision
        assert [entry.revision for entry in await store.entries("room")] == list(range(1, revision + 1))
        await store.close()


async def test_a_caller_that_stops_waiting_does_no_harm(store: Store) -> None:
    await begin(store, "room", "other")
    calls = [
        asyncio.ensure_future(store.append(Commit("room", entry(2), expires=FAR))),
        asyncio.ensure_future(store.load("room")),
        asyncio.ensure_future(store.append(Commit("other", entry(2), expires=FAR))),
    ]
    await asyncio.sleep(0)
    for call in calls[:2]:
        call.cancel()
    await calls[2]
    assert [call.cancelled() for call in calls] == [True, True, False]
    assert (await store.head("other")).revision == 2
    revision = (await store.head("room")).revision
    await store.append(Commit("room", entry(revision + 1), expires=FAR))


async def test_text_that_is_not_unicode_is_an_error_and_not_the_end(store: Store) -> None:
    await begin(store)
    for call in (
        store.head("\ud800"),
        store.create(head("\ud800")),
        store.append(Commit("room", entry(2, "\ud800"), expires=FAR)),
        store.lease("room", "\ud800", now=0.0, until=1.0),
    ):
        with pytest.raises(UnicodeEncodeError):
            await call
    await store.append(Commit("room", entry(2), expires=FAR))
    assert [head.id for head in await store.heads()] == ["room"]


# What can happen to a server.


async def test_a_server_that_is_killed_under_load_loses_nothing_that_was_acknowledged(prefix: str) -> None:
    with RedisServer(durable=True) as server:
        async with open_store(f"{server.url}?prefix={prefix}") as store:
            rooms = [f"room {number}" for number in range(8)]
            await begin(store, *rooms)
            acknowledged = dict.fromkeys(rooms, 1)
            enough = asyncio.Event()

            async def write(room: str) -> None:
                while not enough.is_set():
                    revision = acknowledged[room] + 1
                    await store.append(Commit(room, entry(revision, f"call {revision}"), expires=FAR))
                    acknowledged[room] = revision

            async def lives(revision: int) -> None:
                while min(acknowledged.values()) < revision:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

            writers = asyncio.gather(*map(write, rooms))
            for _ in range(3):
                await lives(min(acknowledged.values()) + 20)
                await asyncio.to_thread(server.restart)
            await lives(min(acknowledged.values()) + 20)
            enough.set()
            await writers
            server.restart()
            for room in rooms:
                entries = await store.entries(room)
                assert entries == [entry(1), *(entry(n, f"call {n}") for n in range(2, acknowledged[room] + 1))]
            assert await store.maintenance.orphans() == []


async def test_a_server_that_loads_its_data_is_waited_for(prefix: str) -> None:
    with RedisServer(durable=True) as server:
        store = await RedisStore.open(f"{server.url}?prefix={prefix}")
        await begin(store)
        with redis.Redis(port=server.port) as client, client.pipeline() as pipeline:
            for number in range(2_500):  # it looks up from its loading after each thousand commands
                pipeline.set("number", number)
            pipeline.execute()
        server.restart("--key-load-delay", "400", wait=False)
        causes = set[type[BaseException | None]]()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    assert await store.heads() == [head()]
                    break
                except StoreUnavailable as error:
                    causes.add(type(error.__cause__))
        assert redis.BusyLoadingError in causes
        await store.close()


async def test_without_memory_nothing_is_written_and_things_can_be_removed(prefix: str) -> None:
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:
        store = await RedisStore.open(f"{server.url}?prefix={prefix}")
        await begin(store, "room", "other")
        revision = 1

        async def add() -> None:
            call, blobs = entry(revision + 1, f"call {revision + 1}", body=LARGE), {f"blob {revision}": LARGE}
            await store.append(Commit("room", call, expires=FAR, snapshot=Snapshot(revision + 1, LARGE), blobs=blobs))

        for _ in range(9):
            await add()
            revision += 1
        with pytest.raises(StoreUnavailable):  # noqa: PT012 - the store fails at some commit
            while True:
                await add()
                revision += 1
        record = await store.maintenance.export("room")
        assert record.head.revision == revision == len(record.entries)
        assert len(record.snapshots) == len(record.blobs) == revision - 1
        assert await store.find_call("room", f"call {revision + 1}") is None
        with pytest.raises(StoreUnavailable):
            await store.create(head("new"), blobs={"aa": LARGE * 3})
        with pytest.raises(UnknownSession):
            await store.head("new")
        await store.prune("room", revision)
        await store.delete("room")
        # Memory is freed beside what the server does.
        await at_last(partial(store.append, Commit("other", entry(2), expires=FAR)))
        assert [head.id for head in await store.heads()] == ["other"]
        await store.maintenance.vacuum()
        assert await store.maintenance.orphans() == []
        await store.close()


def connections(server: RedisServer) -> set[bytes]:
    """The ids of the connections to a server, but for the one that asks."""
    lines = server.ask("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in lines if b"cmd=client" not in line}


async def test_a_server_that_becomes_a_replica_refuses_until_it_is_one_no_more(prefix: str) -> None:
    with RedisServer() as server:
        store = await RedisStore.open(f"{server.url}?prefix={prefix}")
        await begin(store)
        before = connections(server)
        server.ask("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailable):
            await store.append(Commit("room", entry(2), expires=FAR))
        assert not connections(server) & before  # the next one may find whom to write to
        server.ask("REPLICAOF", "NO", "ONE")
        await store.append(Commit("room", entry(2), expires=FAR))
        await store.close()


async def test_a_sentinel_leads_to_the_new_server_after_a_failover(prefix: str) -> None:
    with RedisSentinel() as sentinel:
        async with open_store(f"{sentinel.url}?prefix={prefix}") as store:
            await begin(store)
            for revision in range(2, 12):
                await store.append(Commit("room", entry(revision), expires=FAR))
            replica = sentinel.second
            wait_until(lambda: replica.ask("HGET", f"{prefix}{{/room}}", "revision") == b"11", replica.process)
            sentinel.first.kill()
            for revision in range(12, 22):
                await store.append(Commit("room", entry(revision), expires=FAR))
            assert [entry.revision for entry in await store.entries("room")] == list(range(1, 22))
        assert sentinel.second.ask("HGET", f"{prefix}{{/room}}", "revision") == b"21"


# Clusters.


async def test_all_keys_of_a_session_are_in_one_slot_and_sessions_are_spread(
    cluster: RedisCluster, prefix: str
) -> None:
    rooms = ["", "a}b{c", "{}", *(f"room {number}" for number in range(30))]
    async with open_store(f"{cluster.url}?prefix={prefix}") as store:
        for room in rooms:
            await store.create(head(room), [entry(1)], Snapshot(1, b"state"))
            await store.create(head(f"{room}/fork", parent=room))
        assert len(await store.heads(limit=1000)) == 2 * len(rooms)
    slots: dict[bytes, set[int]] = {}
    for server in cluster.servers:
        keys = [key for key in server.ask("KEYS", f"{prefix}{{/*") if b":void" not in key]
        assert len(keys) > 10
        for key in keys:
            session = key.partition(b"}")[0]
            slots.setdefault(session, set()).add(server.ask("CLUSTER", "KEYSLOT", key))
    assert len(slots) == 2 * len(rooms)
    assert all(len(each) == 1 for each in slots.values())


async def test_a_session_that_moves_to_another_server_is_found_there(cluster: RedisCluster, prefix: str) -> None:
    async with open_store(f"{cluster.url}?prefix={prefix}") as store:
        await begin(store)
        key = f"{prefix}{{/room}}"
        slot = cluster.servers[0].ask("CLUSTER", "KEYSLOT", key)
        home = next(server for server in cluster.servers if _serves(server, key))
        new = next(server for server in cluster.servers if server is not home)
        names = {server.port: server.ask("CLUSTER", "MYID").decode() for server in (home, new)}
        new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[home.port])
        home.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[new.port])
        await store.append(Commit("room", entry(2), expires=FAR))
        home.ask("MIGRATE", "127.0.0.1", new.port, key, 0, 5000)
        await store.append(Commit("room", entry(3), expires=FAR))  # who had it says: ask the other
        for server in (new, home, *cluster.servers):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", names[new.port])
        await store.append(Commit("room", entry(4), expires=FAR))  # who had it says: it has moved
        assert [entry.revision for entry in await store.entries("room")] == [1, 2, 3, 4]
        assert _serves(new, key)


def _serves(server: RedisServer, key: str) -> bool:
    try:
        server.ask("EXISTS", key)
    except redis.ResponseError:  # it is another server's
        return False
    return True


async def test_a_server_of_a_cluster_that_is_away_is_waited_for(prefix: str) -> None:
    with RedisCluster(durable=True) as cluster:
        store = await RedisStore.open(f"{cluster.url}?prefix={prefix}")
        await begin(store)
        home = next(server for server in cluster.servers if _serves(server, f"{prefix}{{/room}}"))
        home.kill()
        with pytest.raises(StoreUnavailable):
            await store.append(Commit("room", entry(2), expires=FAR))
        home.restart()
        await at_last(partial(store.append, Commit("room", entry(2), expires=FAR)))
        assert [entry.revision for entry in await store.entries("room")] == [1, 2]
        await store.close()


# A worker that dies.


async def test_an_unexpected_answer_fails_all_who_wait_with_its_cause_and_the_next_call_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    await begin(store)
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "send_packed_command", fail)
        async with asyncio.timeout(60):
            for answer in await asyncio.gather(store.head("room"), store.count(0.0), return_exceptions=True):
                assert isinstance(answer, StoreUnavailable)
                assert isinstance(answer.__cause__, RuntimeError)
    assert (await store.head("room")).revision == 1


async def test_a_cluster_that_fails_unexpectedly_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(redis.asyncio.cluster.RedisCluster, "pipeline", fail)
    async with asyncio.timeout(60):
        for _ in range(2):
            with raises(StoreUnavailable):
                await RedisStore.open("redis+cluster://127.0.0.1:1")
