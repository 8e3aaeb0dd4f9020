"""What is particular to SQLite: files, processes, and the thread that owns the connection."""
# ruff: noqa: ASYNC240 (a test may wait for a file)

import asyncio
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateroom.errors import Conflict, DuplicateCall, ForeignStore, StoreError, StoreUnavailable
from stateroom.store import Commit, Snapshot, Store, open_store, store_class
from stateroom.store.sqlite import rows
from tests.messages import raises
from tests.patience import PATIENCE
from tests.store.rooms import FAR, begin, entry, head, visit

LOG = 8 << 20
"""Bytes of the log that a file may leave behind."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program is writing to the file for as long as the block runs."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def store_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stateroom-sqlite"]


async def all_threads_end() -> bool:
    for thread in store_threads():
        await asyncio.to_thread(thread.join, 10)
    return not store_threads()


# Files.


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"plain text, longer than a header\n" * 100, "CREATE TABLE theirs (a)", "PRAGMA application_id = 7"],
)
async def test_a_file_of_another_program_is_refused_and_left_alone(path: Path, url: str, content: bytes | str) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(content)
    before = path.read_bytes()
    with raises(ForeignStore):
        await visit(url)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


async def test_a_store_of_a_newer_version_is_refused(path: Path, url: str) -> None:
    async with open_store(url) as store:
        await begin(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with raises(ForeignStore):
        await visit(url)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM sessions").fetchall() == [("room",)]


async def test_an_empty_file_becomes_a_store(path: Path, url: str) -> None:
    path.touch()
    async with open_store(url) as store:
        await begin(store)
        assert await store.head("room") == head()


@pytest.mark.parametrize(
    "place", ["missing/rooms.db", "file/rooms.db", "folder", "nul%00.db", f"{'long' * 100}.db", f"{'long' * 100}/a.db"]
)
async def test_a_path_that_cannot_be_a_file_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with raises(StoreUnavailable):
        async with asyncio.timeout(PATIENCE), open_store(f"sqlite:///{tmp_path}/{place}"):
            pass
    assert await all_threads_end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("written", "name"),
    [("a b.db", "a b.db"), ("a%20b.db", "a b.db"), ("50%25.db", "50%.db"), ("a#b", "a#b"), ("ä.db", "ä.db")],
)
async def test_the_path_in_a_url_is_the_path_on_disk(tmp_path: Path, written: str, name: str) -> None:
    async with open_store(f"sqlite:///{tmp_path}/{written}"):
        assert (tmp_path / name).exists()


async def test_three_slashes_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///rooms.db"):
        assert (tmp_path / "rooms.db").exists()


async def test_the_file_shrinks_after_a_sweep(path: Path, url: str) -> None:
    async with open_store(url) as store:
        for number in range(40):
            expires = 10.0 if number % 2 else FAR
            body = random.Random(number).randbytes(200_000)
            await store.create(head(f"room {number}", 1, expires), [entry(1, body=body)], Snapshot(1, body))
        full = path.stat().st_size
        assert full > 12_000_000
        assert await store.sweep(20.0) == 20
        assert path.stat().st_size < full * 0.55
        await store.touch("room 0", now=0.0, expires=FAR)
        assert path.with_name("rooms.db-wal").stat().st_size <= LOG
    assert path.stat().st_size < full * 0.55
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


@pytest.mark.parametrize("by", ["delete", "sweep"])
async def test_what_was_removed_is_in_no_file_any_more(path: Path, url: str, by: str) -> None:
    secret = b"what nobody may read again"
    with closing(sqlite3.connect(path)) as elsewhere:  # else the log goes when the store is closed
        async with open_store(url) as store:
            await begin(store, "other")
            await store.create(head(expires=1.0), [entry(1)])
            for revision in range(2, 40):
                await store.append(Commit("room", entry(revision, body=b"%d %b" % (revision, secret * 200)), fence=0))
            assert secret in b"".join(file.read_bytes() for file in path.parent.iterdir())
            await (store.delete("room") if by == "delete" else store.sweep(2.0))
            assert secret not in b"".join(file.read_bytes() for file in path.parent.iterdir())
            assert (await store.head("other")).revision == 1
            assert elsewhere.execute("SELECT count(*) FROM sessions").fetchone() == (1,)


async def test_a_session_is_deleted_while_another_program_reads(path: Path, store: Store) -> None:
    await begin(store, "room", "other")
    with closing(sqlite3.connect(path, isolation_level=None)) as elsewhere:
        elsewhere.execute("BEGIN")
        elsewhere.execute("SELECT count(*) FROM sessions").fetchone()
        await store.delete("room")
        elsewhere.execute("ROLLBACK")
    assert (await store.head("other")).revision == 1


async def test_counting_reads_no_more_than_an_index(path: Path, url: str) -> None:
    async with open_store(url) as store:
        await begin(store)
        assert await store.count(0.0) == 1
    with closing(sqlite3.connect(path)) as connection:
        ((*_, plan),) = connection.execute(f"EXPLAIN QUERY PLAN {rows.COUNT}", (0.0,)).fetchall()
    assert "COVERING INDEX sessions_by_expiry" in plan


async def test_the_space_of_deleted_sessions_comes_back_with_the_next_sweep(path: Path, url: str) -> None:
    async with open_store(url) as store:
        for number in range(10):
            await store.create(head(f"room {number}"), [entry(1, body=bytes(1_000_000))], Snapshot(1, bytes(500_000)))
        for number in range(10):
            await store.delete(f"room {number}")
        assert await store.sweep(20.0) == 0
    assert path.stat().st_size < 1_000_000


async def test_a_large_write_does_not_leave_a_large_log_behind(path: Path, store: Store) -> None:
    log = path.with_name("rooms.db-wal")
    await begin(store)
    await store.append(Commit("room", entry(2, body=bytes(2 * LOG)), expires=FAR))
    assert log.stat().st_size > 2 * LOG
    await store.append(Commit("room", entry(3), expires=FAR))
    assert log.stat().st_size <= LOG


# The thread.


async def test_writes_that_wait_together_land_together_except_those_refused(path: Path, store: Store) -> None:
    await begin(store, *"abcdef")
    await store.append(Commit("d", entry(2, "call"), expires=FAR))
    with locked(path):
        held = asyncio.ensure_future(store.append(Commit("a", entry(2), expires=FAR)))
        await asyncio.sleep(0)  # the thread has begun to wait for the file; the others gather behind it
        together = asyncio.gather(
            store.append(Commit("b", entry(2), expires=FAR)),
            store.append(Commit("c", entry(5), expires=FAR)),
            store.append(Commit("d", entry(3, "call"), expires=FAR, snapshot=Snapshot(3, b"wrong"))),
            store.create(head("e", 0)),
            store.append(Commit("f", entry(2), expires=FAR, snapshot=Snapshot(2, b"state"), closes=True)),
            store.append(Commit("b", entry(3), expires=FAR)),
            store.create(head("g"), [entry(1)]),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
    await held
    done = await together
    assert [type(error) for error in done] == [
        type(None), Conflict, DuplicateCall, StoreError, type(None), type(None), type(None)
    ]  # fmt: skip
    revisions = {head.id: head.revision for head in await store.heads()}
    assert revisions == {"a": 2, "b": 3, "c": 1, "d": 2, "e": 1, "f": 2, "g": 1}
    assert (await store.load("d")).snapshot is None
    assert (await store.load("f")).snapshot == Snapshot(2, b"state")


async def test_writes_that_wait_together_reach_the_disk_once(path: Path, store: Store) -> None:
    sessions = [f"room {number}" for number in range(50)]
    await begin(store, *sessions)

    def commits() -> int:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            (busy, frames, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert not busy
        return int(frames)

    one_by_one = commits()
    with locked(path):
        appends = asyncio.gather(*(store.append(Commit(session, entry(2), expires=FAR)) for session in sessions))
        await asyncio.sleep(0)
    await appends
    assert commits() < one_by_one / 4


async def test_a_caller_that_stops_waiting_does_no_harm(path: Path, store: Store) -> None:
    await begin(store, "room", "other")
    with locked(path):
        calls = [
            asyncio.ensure_future(store.append(Commit("room", entry(2, "call"), expires=FAR))),
            asyncio.ensure_future(store.append(Commit("room", entry(9), expires=FAR))),
            asyncio.ensure_future(store.append(Commit("other", entry(2), expires=FAR))),
            asyncio.ensure_future(store.load("room")),
        ]
        await asyncio.sleep(0)
        for call in calls[:2] + calls[3:]:
            call.cancel()
        await asyncio.wait(calls[:2] + calls[3:])
    await asyncio.wait_for(calls[2], PATIENCE)
    assert all(call.cancelled() for call in calls[:2] + calls[3:])
    revision = (await store.head("room")).revision  # what nobody waited for may have been done, wholly
    assert [entry.revision for entry in await store.entries("room")] == list(range(1, revision + 1))
    await store.append(Commit("room", entry(revision + 1), expires=FAR))


async def test_an_opening_that_is_cancelled_leaves_no_thread_behind(path: Path, url: str) -> None:
    with locked(path):
        opening = asyncio.ensure_future(store_class(url).open(url))
        await asyncio.sleep(0)
        assert store_threads()
        opening.cancel()
        await asyncio.wait([opening])
    assert await all_threads_end()


async def test_many_writers_wait_for_a_locked_file_together_and_go_on_when_it_is_free(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.store.sqlite.file.BUSY_SECONDS", 0.2)
    async with open_store(url) as store:
        rooms = [f"room {number}" for number in range(30)]
        for room in rooms:
            await store.create(head(room), [entry(1)])
        rounds = 0
        with locked(path):
            waiting = {asyncio.ensure_future(store.append(Commit(room, entry(2)))) for room in rooms}
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert all(isinstance(call.exception(), StoreUnavailable) for call in done)
                rounds += 1
            assert {head.revision for head in await store.heads()} == {1}
        assert rounds <= 2  # the first, and all that came while it waited
        await store.append(Commit(rooms[0], entry(2)))


async def test_a_reader_does_not_wait_for_a_writer_in_another_process(path: Path, store: Store) -> None:
    await begin(store)
    with locked(path):
        async with asyncio.timeout(PATIENCE):
            assert await store.head("room") == head()
            assert (await store.load("room")).entries == [entry(1)]


async def test_a_call_made_while_the_store_closes_is_answered(path: Path, url: str) -> None:
    async with open_store(url) as store:
        await begin(store)
        with locked(path):
            held = asyncio.ensure_future(store.append(Commit("room", entry(2), expires=FAR)))
            await asyncio.sleep(0)
            ends = [asyncio.ensure_future(store.close()) for _ in range(2)]
            await asyncio.sleep(0)
            with raises(StoreUnavailable):
                await asyncio.wait_for(store.head("room"), PATIENCE)
        await held
        await asyncio.gather(*ends)
    assert not store_threads()
    async with open_store(url) as store:
        assert (await store.head("room")).revision == 2


# What fails one call, and what fails them all.

WRONG: Any = uuid4()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.create(head("\ud800")),
        lambda store: store.head("\ud800"),
        lambda store: store.create(head("new", 2**70)),
        lambda store: store.load("room", 2**70),
        lambda store: store.create(head("other", owner=WRONG)),
        lambda store: store.append(Commit(WRONG, entry(2))),
        lambda store: store.head(WRONG),
    ],
)
async def test_a_value_that_sqlite_cannot_hold_fails_its_own_call_alone(
    store: Store, call: Callable[[Store], Awaitable[object]]
) -> None:
    async with asyncio.timeout(PATIENCE):
        await begin(store)
        with pytest.raises(StoreError):
            await call(store)
        assert await store.heads() == [head()]
        await store.append(Commit("room", entry(2), expires=FAR))
        assert (await store.head("room")).revision == 2


async def test_a_thread_that_dies_fails_all_who_wait_and_all_who_come(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit("out of luck")

    async with asyncio.timeout(60):
        await begin(store)
        monkeypatch.setattr("stateroom.store.sqlite.thread.do_together", die)
        waiting = [asyncio.ensure_future(store.head("room")), asyncio.ensure_future(store.sweep(0.0))]
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, StoreUnavailable)
            assert isinstance(answer.__cause__, SystemExit)
        with raises(StoreUnavailable):
            await store.append(Commit("room", entry(2)))


async def test_an_opening_that_fails_unexpectedly_is_an_error_and_not_a_wait(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("stateroom.store.sqlite.thread.connect", fail)
    async with asyncio.timeout(60):
        with raises(StoreUnavailable):
            await visit(url)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_deleted_or_replaced_acknowledges_no_more_writes(
    path: Path, store: Store, replaced: bool
) -> None:
    await begin(store)
    path.rename(path.with_suffix(".aside"))
    if replaced:
        path.write_bytes(path.with_suffix(".aside").read_bytes())
    with raises(StoreUnavailable):
        await store.append(Commit("room", entry(2)))
    with raises(StoreUnavailable):
        await store.heads(limit=1)


async def test_only_the_user_of_the_process_can_read_the_files(path: Path, store: Store) -> None:
    await begin(store)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == {
        "rooms.db": "0o600",
        "rooms.db-wal": "0o600",
        "rooms.db-shm": "0o600",
    }
