"""The PostgreSQL store, on real servers."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
import pytest

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    ForeignStore,
    OutdatedRecord,
    SessionClosed,
    SessionExpired,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.store import Commit, Entry, Head, HeadFilter, Snapshot, Store, open_store, store_class
from stateroom.store.concurrency import FEW_WRITES
from tests.messages import raises
from tests.patience import PATIENCE
from tests.servers.pooler import SERVERS, TransactionPooler
from tests.servers.postgresql import PASSWORD, PostgreSQLServer, fresh_schema
from tests.store.rooms import FAR, bare, begin, entry, head, visit

PostgreSQLStore = store_class("postgresql://")
"""The store itself, with nobody who tries again."""


@pytest.fixture
def url(postgresql_url: str) -> Iterator[str]:
    with fresh_schema(postgresql_url) as url:
        yield url


@pytest.fixture
def pooler(url: str) -> Iterator[TransactionPooler]:
    server, _, schema = url.rpartition("?")
    with TransactionPooler(server) as pooler:
        pooler.url += f"?{schema}"
        yield pooler


@contextmanager
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody else's, in the store's schema."""
    server, _, schema = url.rpartition("?schema=")
    with psycopg.connect(server, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield connection


async def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.005)


@pytest.mark.more("time")
def test_the_driver_in_pure_python_does_as_well(postgresql_url: str) -> None:
    environment = {**os.environ, "PSYCOPG_IMPL": "python", "STATEROOM_TEST_POSTGRES_URL": postgresql_url}
    check = "import psycopg.pq; assert psycopg.pq.__impl__ == 'python'"
    if subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, check=False).returncode:
        pytest.skip("psycopg in pure Python needs the system's libpq, which is not there")
    suite = Path(__file__).with_name("test_conformance.py")
    tests = [f"{suite}::TestPostgreSQL", "-k", "append or create or load or blob or lease"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", *tests]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Round trips.


async def test_every_operation_is_one_round_trip(pooler: TransactionPooler) -> None:
    async with bare(pooler.url) as store:
        blobs = {"digest": b"large" * 20_000}
        operations: list[Coroutine[Any, Any, Any]] = [
            store.create(head(), [entry(1, "seed")], Snapshot(1, b"state"), blobs),
            store.append(Commit("room", entry(2, "call"))),
            store.append(
                Commit(
                    "room", entry(3), expires=FAR + 1, snapshot=Snapshot(3, b"state"), blobs={**blobs, "more": b"large"}
                )
            ),
            store.lease("room", "me", now=1.0, until=2.0),
            store.append(Commit("room", entry(4), fence=1, closes=True)),
            store.release("room", "me"),
            store.create(head("fork", parent="room")),
            store.touch("fork", now=1.0, expires=FAR + 1),
            store.children("room"),
            store.head("room"),
            store.heads(),
            store.load("room"),
            store.load("room", 2),
            store.entries("room"),
            store.find_call("room", "call"),
            store.blobs("room", ["digest", "more"]),
            store.count(1.0),
            store.delete("fork"),
        ]
        for operation in operations:
            before = pooler.round_trips
            await operation
            assert pooler.round_trips - before == 1, operation


async def test_appends_that_come_up_together_go_to_the_server_together(pooler: TransactionPooler) -> None:
    async with bare(pooler.url) as store:
        names = [f"room {number}" for number in range(64)]
        await begin(store, *names)
        before = pooler.round_trips
        await asyncio.gather(*(store.append(Commit(name, entry(2))) for name in names))
        assert pooler.round_trips - before == 2, "a first half, and the rest"
        before = pooler.round_trips
        await asyncio.gather(*(store.append(Commit(name, entry(3))) for name in names[:FEW_WRITES]))
        assert pooler.round_trips - before == 1


async def test_appends_that_come_up_while_a_batch_is_under_way_are_the_next(
    url: str, pooler: TransactionPooler
) -> None:
    async with bare(pooler.url) as store:
        names = [f"room {number}" for number in range(40)]
        await begin(store, *names)
        before = pooler.round_trips
        with locked(url, names[0]) as waiting:
            appends = [asyncio.ensure_future(store.append(Commit(names[0], entry(2))))]
            await until(waiting)
            for name in names[1:]:
                appends.append(asyncio.ensure_future(store.append(Commit(name, entry(2)))))
                await asyncio.sleep(0)
        await asyncio.gather(*appends)
        assert pooler.round_trips - before == 2


@contextmanager
def locked(url: str, session: str) -> Iterator[Callable[[], bool]]:
    """Somebody has a session's head in hand for as long as the block runs; it gives whether anyone waits for it."""
    with admin(url) as connection, admin(url) as observer:
        connection.execute("BEGIN")
        connection.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", (session.encode(),))
        try:
            yield lambda: is_waited_for(connection, observer)
        finally:
            connection.execute("ROLLBACK")


def is_waited_for(connection: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> bool:
    """Whether anyone waits for what a connection has locked."""
    query = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return observer.execute(query, (connection.info.backend_pid,)).rowcount > 0


# Batches.


async def test_each_append_of_a_batch_has_its_own_outcome(store: Store, url: str) -> None:
    await begin(store, *"abcdefghij")
    await store.append(Commit("b", entry(2), closes=True))
    await store.touch("c", now=-1.0, expires=0.0)
    await store.append(Commit("d", entry(2, "call")))
    await store.lease("f", "me", now=1.0, until=2.0)
    too_long = Random(1).randbytes(10_000).decode("latin-1")
    with locked(url, "a") as waiting:
        calls = [asyncio.ensure_future(store.append(Commit("a", entry(2))))]
        await until(waiting)  # the others gather behind it
        later = {
            "a": store.append(Commit("a", entry(3))),
            "b": store.append(Commit("b", entry(3), snapshot=Snapshot(3, b"wrong"), blobs={"wrong": b""})),
            "c": store.append(Commit("c", entry(2))),
            "d": store.append(Commit("d", entry(3, "call"), snapshot=Snapshot(3, b"wrong"))),
            "e": store.append(Commit("e", entry(3), blobs={"wrong": b"wrong"})),
            "f": store.append(Commit("f", entry(2))),
            "g": store.append(Commit("g", entry(2, too_long))),
            "h": store.append(
                Commit("h", entry(2), expires=5.0, snapshot=Snapshot(2, b"right"), blobs={"right": b"r"})
            ),
            "i": store.append(Commit("i", entry(2), closes=True)),
            "i again": store.append(Commit("i", entry(3))),
            "nobody": store.append(Commit("nobody", entry(1))),
        }
        calls += map(asyncio.ensure_future, later.values())
        await asyncio.sleep(0)
    done = dict(zip(["first", *later], await asyncio.gather(*calls, return_exceptions=True), strict=True))
    assert {name: type(error) for name, error in done.items() if error is not None} == {
        "b": SessionClosed,
        "c": SessionExpired,
        "d": DuplicateCall,
        "e": Conflict,
        "f": Conflict,
        "g": StoreError,
        "i again": SessionClosed,
        "nobody": UnknownSession,
    }
    revisions = {each.id: each.revision for each in await store.heads()}
    assert revisions == {"a": 3, "b": 2, "c": 1, "d": 2, "e": 1, "f": 1, "g": 1, "h": 2, "i": 2, "j": 1}
    for name in "bde":
        assert (await store.load(name)).snapshot is None
        assert await store.blobs(name, ["wrong"]) == {}
    assert await store.load("h", 2) == (await store.load("h"))
    assert (await store.load("h")).snapshot == Snapshot(2, b"right")
    assert await store.blobs("h", ["right", "wrong"]) == {"right": b"r"}
    assert (await store.head("h")).expires == 5.0
    assert await store.maintenance.orphans() == []


async def test_workers_that_write_to_the_same_sessions_never_wait_in_a_circle(url: str) -> None:
    async with bare(url) as one, bare(url) as two:
        names = [f"room {number}" for number in range(30)]
        await begin(one, *names)

        async def write(store: Store, order: list[str], revision: int) -> list[Any]:
            calls = [store.append(Commit(name, entry(revision), expires=FAR + revision)) for name in order]
            return await asyncio.gather(*calls, return_exceptions=True)

        for revision in range(2, 22):
            ours, theirs = await asyncio.gather(write(one, names, revision), write(two, names[::-1], revision))
            for mine, other in zip(ours, reversed(theirs), strict=True):
                assert sorted(map(str, map(type, (mine, other)))) == sorted(map(str, (type(None), Conflict)))


async def test_a_caller_that_stops_waiting_does_no_harm(url: str) -> None:
    async with bare(f"{url}&pool=2") as store:
        await begin(store, "room", "other")
        for _ in range(5):
            with locked(url, "room") as waiting:
                calls = [
                    asyncio.ensure_future(store.append(Commit("room", entry(99)))),
                    asyncio.ensure_future(store.touch("room", now=1.0, expires=FAR)),
                ]
                await until(waiting)
                calls += [asyncio.ensure_future(store.head("other")) for _ in range(3)]
                await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.wait(calls)
        await store.append(Commit("room", entry(2)))
        assert (await store.head("other")).revision == 1


async def test_one_connection_is_enough(url: str) -> None:
    async with bare(f"{url}&pool=1") as store:
        names = [f"room {number}" for number in range(20)]
        await asyncio.gather(*(begin(store, name) for name in names))
        appends = [store.append(Commit(name, entry(2))) for name in names]
        await asyncio.gather(
            *appends, store.sweep(0.0), *(store.load(name) for name in names), store.maintenance.vacuum()
        )
        assert {each.revision for each in await store.heads()} == {2}


async def test_large_values_go_both_ways(store: Store) -> None:
    body = Random(2).randbytes(6_000_000)  # more than a socket takes at once, and three of them than a batch carries
    await store.create(head(), [entry(1, body=body)], Snapshot(1, body), {"digest": body})
    await begin(store, "a", "b")
    appends = [store.append(Commit(name, entry(2, body=body))) for name in ("room", "a", "b")]
    await asyncio.gather(*appends, store.head("room"))
    assert (await store.load("room")).snapshot == Snapshot(1, body)
    record = await store.maintenance.export("room")
    assert [each.body == body for each in record.entries] == [True, True]
    await store.delete("room")
    await store.put(record)
    assert await store.maintenance.export("room") == record


# Behind a pooler in transaction mode.


async def test_each_transaction_may_land_on_another_backend(pooler: TransactionPooler) -> None:
    async with open_store(pooler.url) as one, open_store(pooler.url) as two:
        names = [f"room {number}" for number in range(12)]
        for name in names:
            await one.create(head(name), [entry(1)])

        async def work(name: str) -> None:
            for revision in range(2, 12):
                store = one if revision % 2 else two
                await store.append(Commit(name, entry(revision, f"call {revision}")))
                assert (await store.load(name)).head.revision == revision

        await asyncio.gather(*map(work, names))
        record = await one.maintenance.export(names[0])
        await one.delete(names[0])
        await two.put(record)
        assert await one.maintenance.export(names[0]) == record
        assert await two.sweep(FAR) == len(names)
        await one.maintenance.vacuum()
        assert await one.maintenance.orphans() == []
    assert len(pooler.transactions) == SERVERS
    assert min(pooler.transactions.values()) > 2


async def test_a_restore_that_is_refused_holds_no_lock_when_it_is_answered(pooler: TransactionPooler) -> None:
    async with bare(pooler.url) as store:
        await begin(store)
        record = await store.maintenance.export("room")
        ended = pooler.transactions.total()
        with pytest.raises(OutdatedRecord):
            await store.put(type(record)(head(revision=0), [], [], {}))
        assert pooler.transactions.total() == ended + 1
        assert await store.sweep(FAR) == 1  # which passes over what somebody has locked


# The server goes away, and comes back.


async def test_a_restart_under_load_loses_nothing_and_does_nothing_twice() -> None:
    with PostgreSQLServer() as server:
        async with open_store(f"{server.url}?timeout=60") as store:
            names = [f"room {number}" for number in range(16)]
            for name in names:
                await store.create(head(name, 0))
            crash, done = asyncio.Event(), False
            acknowledged = dict.fromkeys(names, 0)

            async def write(name: str) -> None:
                for revision in range(1, 61):
                    await store.append(Commit(name, entry(revision, f"{name}/{revision}")))
                    acknowledged[name] = revision
                    if name == names[0] and revision % 20 == 10:
                        crash.set()

            async def crash_often() -> None:
                while not done:
                    await crash.wait()
                    crash.clear()
                    await asyncio.to_thread(server.restart)

            crashing = asyncio.ensure_future(crash_often())
            await asyncio.gather(*map(write, names))
            done = True
            crash.set()
            await crashing
            for name in names:
                calls = [each.call_id for each in await store.entries(name)]
                assert calls == [f"{name}/{number}" for number in range(1, acknowledged[name] + 1)]
                assert (await store.head(name)).revision == 60
            assert await store.maintenance.orphans() == []


async def test_a_backend_that_is_ended_is_an_error_and_not_the_end(url: str) -> None:
    name = f"test {uuid4()}"
    async with bare(f"{url}&application_name={quote(name)}") as store:
        await begin(store)
        with locked(url, "room") as waiting, admin(url) as connection:
            append = asyncio.ensure_future(store.append(Commit("room", entry(2))))
            await until(waiting)
            mine = "FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
            connection.execute(f"SELECT pg_terminate_backend(pid) {mine}", (name,))
            with pytest.raises(StoreUnavailable):
                await append
        assert (await store.head("room")).revision == 1
        await store.append(Commit("room", entry(2)))


async def test_connections_that_ended_while_nobody_used_them_are_not_noticed(url: str) -> None:
    name = f"test {uuid4()}"
    async with bare(f"{url}&application_name={quote(name)}") as store:
        await begin(store)
        await asyncio.gather(*(store.head("room") for _ in range(8)))
        with admin(url) as connection:
            mine = "FROM pg_stat_activity WHERE application_name = %s"
            assert connection.execute(f"SELECT pg_terminate_backend(pid) {mine}", (name,)).rowcount == 8
            await until(lambda: connection.execute(f"SELECT {mine}", (name,)).rowcount == 0)
        await until(lambda: not any(link.alive for link in store._pool._idle))
        assert await asyncio.gather(*(store.head("room") for _ in range(8))) == [head()] * 8


async def test_a_server_that_does_not_answer_is_given_up(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(store)
    monkeypatch.setattr("stateroom.store.postgresql.connection.PostgresLink.timeout", 0.1)
    with locked(url, "room"), raises(StoreUnavailable):
        await store.append(Commit("room", entry(2)))
    monkeypatch.undo()
    done = await asyncio.gather(store.append(Commit("room", entry(2))), return_exceptions=True)
    assert type(done[0]) in (type(None), Conflict)  # what nobody waited for may have been done
    assert [each.revision for each in await store.entries("room")] == [1, 2]


async def test_a_server_that_is_away_is_told_of_at_once_by_all(url: str) -> None:
    with PostgreSQLServer() as server:
        async with bare(f"{server.url}?pool=2") as store:
            await begin(store)
            server.kill()
            calls = [store.head("room") for _ in range(50)]
            done = await asyncio.gather(*calls, store.append(Commit("room", entry(2))), return_exceptions=True)
            assert {type(error) for error in done} == {StoreUnavailable}
            server.restart()
            await store.append(Commit("room", entry(2)))


async def test_a_closed_store_leaves_no_connection_behind(url: str) -> None:
    name = f"test {uuid4()}"
    async with bare(f"{url}&application_name={quote(name)}") as store:
        await begin(store)
        await asyncio.gather(*(store.head("room") for _ in range(5)))
        await asyncio.gather(*(store.close() for _ in range(3)))
    with admin(url) as connection:
        query = "SELECT FROM pg_stat_activity WHERE application_name = %s"
        await until(lambda: connection.execute(query, (name,)).rowcount == 0)


# What lies in the database.


async def test_schemas_are_stores_of_their_own(url: str, postgresql_url: str) -> None:
    with fresh_schema(postgresql_url) as another:
        async with bare(url) as one, bare(another) as two:
            await begin(one)
            assert await two.heads() == []
            assert await two.maintenance.sizes() != await one.maintenance.sizes()


async def test_a_newer_store_is_refused(url: str) -> None:
    async with bare(url):
        pass
    with admin(url) as connection:
        connection.execute("INSERT INTO stateroom_migrations (version) VALUES (99)")
    with raises(ForeignStore):
        await visit(url)


async def test_a_schema_of_another_program_is_left_alone(url: str) -> None:
    schema = url.rpartition("=")[2]
    with admin(url) as connection:
        connection.execute(f"CREATE SCHEMA {schema} CREATE TABLE sessions (sid text)")
        with raises(ForeignStore):
            await visit(url)
        assert connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'", (schema,)
        ).fetchall() == [("sessions",)]


async def test_another_isolation_is_refused(url: str) -> None:
    options = quote("-c default_transaction_isolation=serializable")
    with pytest.raises(StoreUnavailable):
        await visit(f"{url}&options={options}")


@pytest.mark.parametrize("name", ["nul\x00", "\x00", "half a pair \ud800", "\udcff", ""])
async def test_text_that_is_no_text_elsewhere_can_be_an_id(store: Store, name: str) -> None:
    first = Entry(1, name, 1.0, b"", name)
    whole = Head(name, name, name, 0.0, FAR, 1, holder=name)
    await store.create(whole, [first], None, {name: b"blob"})
    await store.append(Commit(name, entry(2, f"{name}2")))
    assert await store.heads(HeadFilter(environment=name)) == [await store.head(name)]
    assert await store.find_call(name, name) == first
    assert await store.blobs(name, [name]) == {name: b"blob"}
    assert await store.find_call(name, "") == (first if name == "" else None)


async def test_heads_of_one_age_are_in_the_order_of_code_points(store: Store) -> None:
    names = ["a", "B", "b", "é", "e\u0301", "z", "\uffff", "\U0001f6a2", "a b", "a-b", "ab", "\ud800"]
    await begin(store, *names)
    assert [each.id for each in await store.heads()] == sorted(names, reverse=True)
    first = await store.heads(limit=5)
    assert [each.id for each in await store.heads(after=first[-1])] == sorted(names, reverse=True)[5:]


async def test_a_number_that_the_database_cannot_hold_is_an_error(store: Store) -> None:
    await begin(store)
    calls = [
        store.append(Commit("room", entry(2**63))),
        store.load("room", 2**63),
        store.create(head("a", 2**64)),
    ]
    for call in calls:
        with raises(StoreError):
            await call


async def test_a_sweep_waits_for_nobody_and_never_takes_the_parent_of_a_fork_that_is_being_made(
    store: Store, url: str
) -> None:
    async with asyncio.timeout(PATIENCE):
        for name in ("room", "other"):
            await store.create(head(name, expires=10.0), [entry(1)])
        with forking(url, "room"):
            assert await store.sweep(10.0) == 1
        assert {each.id for each in await store.heads()} == {"room", "fork"}
        assert await store.sweep(10.0) == 0


async def test_a_deletion_waits_for_a_fork_that_is_being_made(store: Store, url: str) -> None:
    await begin(store)
    with forking(url, "room") as waiting:
        deletion = asyncio.ensure_future(store.delete("room"))
        await until(waiting)
    await deletion
    assert (await store.head("room")).expires == 0.0
    assert await store.maintenance.orphans() == []


@contextmanager
def forking(url: str, session: str) -> Iterator[Callable[[], bool]]:
    """Somebody is about to fork a session, and does so at the end of the block; it gives whether anyone waits."""
    with admin(url) as connection, admin(url) as observer, connection.transaction():
        connection.execute("SELECT FROM sessions WHERE id = %s FOR KEY SHARE", (session.encode(),))
        connection.execute(
            "INSERT INTO sessions SELECT 'fork', environment, owner, created, 1e12, revision, closed, id, revision, 0, "
            "NULL, 0 FROM sessions WHERE id = %s",
            (session.encode(),),
        )
        yield lambda: is_waited_for(connection, observer)


async def test_orphans_are_told_of_and_removed(store: Store, url: str) -> None:
    await store.create(head(), [entry(1), entry(2)], Snapshot(1, b"state"), {"digest": b"blob"})
    await store.create(head("fork", parent="room"))
    with admin(url) as connection:
        connection.execute("DELETE FROM sessions WHERE id = 'room'")
    assert await store.maintenance.orphans() == [
        "entries of session 'room', which does not exist: 2",
        "snapshots of session 'room', which does not exist: 1",
        "blobs of session 'room', which does not exist: 1",
        "session 'fork', whose parent 'room' does not exist",
    ]
    await store.maintenance.vacuum()
    assert await store.maintenance.orphans() == ["session 'fork', whose parent 'room' does not exist"]


@pytest.fixture
def own_server() -> Iterator[PostgreSQLServer]:
    """A server that nobody else uses."""
    with PostgreSQLServer() as server:
        yield server


async def test_a_step_writes_as_much_however_many_went_before_and_a_fork_next_to_nothing(
    own_server: PostgreSQLServer,
) -> None:
    async with bare(f"{own_server.url}?schema=rooms") as store:
        await store.create(head(revision=0))
        with admin(f"{own_server.url}?schema=rooms") as connection:

            def written() -> int:
                ((position,),) = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
                return int(position)

            async def steps(first: int, last: int) -> float:
                before = written()
                for revision in range(first, last):
                    await store.append(Commit("room", entry(revision, f"call {revision}", body=bytes(500))))
                return (written() - before) / (last - first)

            early = await steps(1, 40)
            await steps(40, 600)
            assert await steps(600, 640) < early * 1.5 < 3 * 500 * 1.5
            await store.append(Commit("room", entry(640), snapshot=Snapshot(640, bytes(10_000_000))))
            before = written()
            await store.create(head("fork", 640, parent="room", parent_revision=640))
            assert written() - before < 2_000


# Addresses.


@pytest.mark.parametrize(
    "place", ["{user}wr0ng%2Fsecret@{server}/postgres", "{user}@{server}/nowhere", "me:secret@127.0.0.1:1/db"]
)
async def test_where_no_store_can_be_is_said_without_the_password(postgresql_url: str, place: str) -> None:
    user, _, server = urlsplit(postgresql_url).netloc.rpartition("@")
    with pytest.raises(StoreUnavailable) as refused:
        await PostgreSQLStore.open(f"postgres://{place.format(user=user, server=server)}")
    assert not {"secret", PASSWORD} & set(re.split(r"\W", str(refused.value)))
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b""])
async def test_what_is_not_postgresql_is_told(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StoreUnavailable) as refused:
            await PostgreSQLStore.open(f"postgresql://me:secret@{host}/db?gssencmode=disable")
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)


async def test_options_of_the_driver_are_the_drivers(url: str) -> None:
    with pytest.raises(StoreUnavailable):
        await PostgreSQLStore.open(f"{url}&sslmode=require")
    async with bare(f"{url}&connect_timeout=3&application_name=mine") as store:
        assert store.address.parameters["connect_timeout"] == "3"


async def test_of_several_hosts_the_one_that_serves_is_used(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port
    user = parts.netloc.rpartition("@")[0]
    several = parts._replace(netloc=f"{user}@127.0.0.1:1,127.0.0.1:{parts.port}").geturl()
    async with bare(several) as store:
        await begin(store)
        assert store.address.parameters["target_session_attrs"] == "read-write"


# What fails one call, and not all.


async def test_an_answer_that_cannot_be_read_fails_its_call_and_the_next_goes_on(store: Store) -> None:
    async with asyncio.timeout(60):
        await begin(store)
        async with store._pool.link() as link:  # type: ignore[attr-defined]
            link._rows = None
        with pytest.raises(StoreUnavailable):
            await store.head("room")
        assert (await store.head("room")).revision == 1


async def test_a_batch_that_fails_unexpectedly_fails_all_who_wait_and_the_next_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    async with asyncio.timeout(60):
        await begin(store, "room", "other")
        for place in ("Appends._take", "_many"):
            with monkeypatch.context() as patched:
                patched.setattr(f"stateroom.store.postgresql.appends.{place}", fail)
                appends = [store.append(Commit(session, entry(2))) for session in ("room", "other")]
                for answer in await asyncio.gather(*appends, return_exceptions=True):
                    assert isinstance(answer, StoreError)
                    assert "out of luck" in str(answer)
        await store.append(Commit("room", entry(2)))
