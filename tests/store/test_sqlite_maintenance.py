"""Care for an SQLite file: a disk that is full, space that comes back, and rows that belong to nobody."""
# ruff: noqa: ASYNC240 (a test may wait for a file)

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stateroom.errors import StoreUnavailable, UnknownSession
from stateroom.store import Commit, Head, Record, Size, Snapshot, Store, open_store
from tests.messages import raises
from tests.store.rooms import FAR, begin, entry, head

LARGE = random.Random(1).randbytes(1_000_000)


async def allow(store: Store, more: int) -> None:
    """Let the file grow by so many pages."""

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + more}")

    await store.thread.read(limit)  # type: ignore[attr-defined]  # the limit is of its own connection


def tamper(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
async def store(store: Store) -> Store:
    await begin(store)
    return store


# A full disk.


async def test_what_does_not_fit_on_the_disk_is_refused_whole(store: Store) -> None:
    record = await store.maintenance.export("room")
    await allow(store, 20)
    other = Record(head("other"), [entry(1)], [Snapshot(1, LARGE)], {"digest": LARGE})
    for call in (
        store.append(Commit("room", entry(2, body=LARGE))),
        store.append(Commit("room", entry(2, body=LARGE), expires=1.0, closes=True)),
        store.append(Commit("room", entry(2), expires=1.0, snapshot=Snapshot(2, LARGE))),
        store.append(Commit("room", entry(2), blobs={"small": b"small", "digest": LARGE})),
        store.create(head("other"), [entry(1)], Snapshot(1, b""), {"digest": LARGE}),
        store.create(head("other"), [entry(1, body=LARGE)]),
        store.put(other),
    ):
        with raises(StoreUnavailable):
            await call
        assert await store.maintenance.export("room") == record
        assert await store.heads() == [head()]
    assert await store.maintenance.orphans() == []
    await store.append(Commit("room", entry(2)))  # there is room for this
    await allow(store, 10_000)
    await store.append(Commit("room", entry(3, body=LARGE), snapshot=Snapshot(3, LARGE), blobs={"digest": LARGE}))
    await store.put(other)
    assert await store.maintenance.export("other") == other


async def test_writes_that_wait_together_are_each_done_or_refused_whole(store: Store) -> None:
    for name in "abcdef":
        await store.create(head(name), [entry(1)])
    await allow(store, 20)
    done = await asyncio.gather(
        *(store.append(Commit(name, entry(2))) for name in "abc"),
        store.append(Commit("d", entry(2), blobs={"digest": LARGE})),
        store.append(Commit("e", entry(2), expires=FAR + 1)),
        return_exceptions=True,
    )
    for name, outcome in zip("abcde", done, strict=True):
        assert outcome is None or isinstance(outcome, StoreUnavailable)
        assert (await store.head(name)).revision == (2 if outcome is None else 1)
    assert isinstance(done[3], StoreUnavailable)
    assert await store.blobs("d", ["digest"]) == {}
    await allow(store, 10_000)
    await store.append(Commit("d", entry(2), blobs={"digest": LARGE}))
    await store.append(Commit("f", entry(2)))


async def test_sessions_can_be_removed_from_a_full_disk_and_make_room(store: Store) -> None:
    await store.create(head("old", expires=10.0), [entry(1)], blobs={"digest": LARGE})
    await allow(store, 5)
    with pytest.raises(StoreUnavailable):
        await store.append(Commit("room", entry(2, body=LARGE)))
    assert await store.sweep(20.0) == 1
    await store.append(Commit("room", entry(2, body=LARGE)))


# Space that comes back.


async def test_a_vacuum_leaves_no_free_page(path: Path, url: str) -> None:
    async with open_store(url) as store:
        names = [f"room {number}" for number in range(600)]
        await asyncio.gather(*(store.create(head(name), [entry(1, body=bytes(9_000))]) for name in names))
        for number, name in enumerate(names):
            if number % 5:
                await store.delete(name)
        full = (await store.maintenance.sizes())["file"].bytes
        await store.maintenance.vacuum()
        assert (await store.maintenance.sizes())["file"].bytes == path.stat().st_size < full / 3
        assert len(await store.heads(limit=600)) == 120
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_vacuum_does_not_wait_for_readers(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.sqlite.file.BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        rows = other.execute("SELECT * FROM entries").fetchall()
        await store.append(Commit("room", entry(2)))
        await store.maintenance.vacuum()
        assert other.execute("SELECT * FROM entries").fetchall() == rows
        other.execute("COMMIT")
    assert (await store.head("room")).revision == 2


async def test_a_vacuum_that_cannot_be_done_is_an_error_and_not_the_end(store: Store, path: Path) -> None:
    path.rename(path.with_name("moved.db"))
    path.mkdir()
    with raises(StoreUnavailable):
        await store.maintenance.vacuum()
    path.rmdir()
    path.with_name("moved.db").rename(path)
    await store.append(Commit("room", entry(2)))


# What belongs to nobody.


async def test_rows_without_a_session_are_told_and_removed(store: Store, path: Path) -> None:
    before = await store.maintenance.export("room")
    tamper(
        path,
        "INSERT INTO entries VALUES ('gone', 1, 'call', 0.0, NULL, x'00')",
        "INSERT INTO entries VALUES ('gone', 2, 'call', 0.0, NULL, x'00')",
        "INSERT INTO snapshots VALUES ('gone', 1, x'00')",
        "INSERT INTO blobs VALUES ('lost', 'digest', x'00')",
    )
    assert await store.maintenance.orphans() == [
        "entries of session 'gone', which does not exist: 2",
        "snapshots of session 'gone', which does not exist: 1",
        "blobs of session 'lost', which does not exist: 1",
    ]
    await store.maintenance.vacuum()
    assert await store.maintenance.orphans() == []
    assert await store.maintenance.export("room") == before
    assert (await store.maintenance.sizes())["entries"] == Size(1, 4)


async def test_a_fork_whose_parent_is_gone_is_told_and_stays(store: Store, path: Path) -> None:
    fork = Head("fork", "env", "owner", 1.0, FAR, 2, parent="room", parent_revision=1)
    await store.create(fork, [entry(2)], Snapshot(2, b"state"))
    tamper(path, "DELETE FROM sessions WHERE id = 'room'", "DELETE FROM entries WHERE session = 'room'")
    with pytest.raises(UnknownSession):
        await store.head("room")
    assert await store.maintenance.orphans() == ["session 'fork', whose parent 'room' does not exist"]
    await store.maintenance.vacuum()
    assert (await store.load("fork")).snapshot == Snapshot(2, b"state")
    await store.delete("fork")
    assert await store.maintenance.orphans() == []


# Sizes.


async def test_sizes_are_exact(store: Store, path: Path) -> None:
    await store.append(Commit("room", entry(2, body=b"12345"), snapshot=Snapshot(2, b"123"), blobs={"digest": b"12"}))
    await store.create(head("ä"), [entry(1, body=b"")], blobs={"digest": b"12", "other": b""})
    assert await store.size("room") == Size(2, 4 + 5 + 3 + 2)
    assert await store.size("ä") == Size(1, 2)
    sizes = await store.maintenance.sizes()
    assert sizes.pop("file").rows > 5
    assert sizes == {
        "sessions": Size(2, len(b"room") + len("ä".encode()) + 2 * len(b"envowner")),
        "entries": Size(3, 9),
        "snapshots": Size(1, 3),
        "blobs": Size(3, 4),
    }
