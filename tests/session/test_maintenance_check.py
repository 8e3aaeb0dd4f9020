"""Checking a store: nothing is wrong with what was written, and damage is found."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom import open_store
from stateroom.session import count_sessions, each_session, write_body
from stateroom.store import Entry, Head, MemoryStore, Store
from tests.session.stored_sessions import family, go_on, new, problems, sessions_of

pytestmark = pytest.mark.usefixtures("many_snapshots")


@pytest.mark.every_store
async def test_nothing_is_wrong_with_what_was_written(store: Store) -> None:
    await family(store)
    await (await new(store, 2)).call("meet")
    assert await problems(store) == {}


DAMAGE = {
    "entries in the middle": (
        "DELETE FROM entries WHERE session = :id AND revision IN (3, 5, 6)",
        "missing: 3, 5 to 6",
    ),
    "the first entries": ("DELETE FROM entries WHERE session = :id AND revision < 3", "entries are missing: 1 to 2"),
    "the last entry": ("DELETE FROM entries WHERE session = :id AND revision = 32", "entries are missing: 32"),
    "a head that was left behind": ("UPDATE sessions SET revision = 30 WHERE id = :id", "unexpected snapshots: 31"),
    "the first snapshot": (
        "DELETE FROM snapshots WHERE session = :id AND revision = 1",
        "the first snapshot is missing",
    ),
    "all snapshots": ("DELETE FROM snapshots WHERE session = :id", "the first snapshot is missing"),
    "the end of an entry": (
        "UPDATE entries SET body = substr(body, 1, 20) WHERE session = :id AND revision = 7",
        "entry 7 cannot be read",
    ),
    "an entry that is none": (
        "UPDATE entries SET body = x'92c0c0' WHERE session = :id AND revision = 7",
        "entry 7 cannot be read",
    ),
    "the end of a snapshot": (
        "UPDATE snapshots SET body = substr(body, 1, 20) WHERE session = :id AND revision = 1",
        "the snapshot at revision 1 cannot be read",
    ),
    "a snapshot that is none": (
        "UPDATE snapshots SET body = x'80' WHERE session = :id AND revision = 1",
        "the snapshot at revision 1 cannot be read",
    ),
    "a large value": ("DELETE FROM blobs WHERE session = :id", "is missing"),
    "a large value that was changed": (
        "UPDATE blobs SET body = CAST(replace(CAST(body AS TEXT), 'l', 'L') AS BLOB) WHERE session = :id",
        "is damaged",
    ),
    "patches that do not fit": (
        "UPDATE snapshots SET body = (SELECT body FROM snapshots WHERE session = :other AND revision = 1) "
        "WHERE session = :id",
        "its state cannot be read: ",
    ),
}


async def damaged(path: Path, statement: str, **values: Any) -> dict[str | None, list[str]]:
    """What is found after an SQL statement was carried out on the file."""
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount
    connection.close()
    async with open_store(f"sqlite:///{path}") as store:
        return await problems(store)


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_to_a_session_is_found(tmp_path: Path, what: str) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        session = await new(store, 30)
        await session.call("add", {"text": "large " * 20_000})
        await go_on(session, 1)
        other = await sessions_of(store).seed({"user": "bob"})
        await other.call("meet")
    statement, told = DAMAGE[what]
    found = await damaged(tmp_path / "rooms.db", statement, id=session.id, other="user:notes:bob")
    assert list(found) == [session.id]
    assert told in "\n".join(found[session.id])


FAMILY_DAMAGE = {
    "a parent that is gone": (
        "DELETE FROM sessions WHERE id = :parent",
        "the parent of session '{fork}', does not exist",
    ),
    "a parent that is not deep enough": (
        "UPDATE sessions SET parent_revision = 40, revision = revision + 20 WHERE id = :fork",
        "'{parent}' is at revision 31, but session '{fork}' was forked from its revision 40",
    ),
    "its own parent": ("UPDATE sessions SET parent = id WHERE id = :fork", "it is its own ancestor"),
    "a circle": (
        "UPDATE sessions SET parent = :fork, parent_revision = 2 WHERE id = :parent",
        "it is its own ancestor",
    ),
    "a past that a fork needs": (
        "DELETE FROM snapshots WHERE session = :parent AND revision < 20",
        "its state at revision 15 cannot be read",
    ),
    "a large value of the parent's": ("DELETE FROM blobs WHERE session = :parent", "is missing"),
}


@pytest.mark.parametrize("what", FAMILY_DAMAGE)
async def test_damage_to_a_family_is_found(tmp_path: Path, what: str) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        parent, fork, closed, _ = await family(store)
    statement, told = FAMILY_DAMAGE[what]
    found = await damaged(tmp_path / "rooms.db", statement, parent=parent, fork=fork)
    hurt = closed if "large" in what else fork
    assert told.format(parent=parent, fork=fork) in "\n".join(found[hurt])


async def test_a_large_value_that_only_the_log_has_is_missed(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        session = await new(store, 3)
        await session.call("add", {"text": "large " * 20_000})
        await session.rewind(to=3)
    found = await damaged(tmp_path / "rooms.db", "DELETE FROM blobs")
    (line,) = found[session.id]
    assert line.startswith("the large value ")
    assert line.endswith(" is missing")


async def test_a_fork_that_has_snapshots_of_its_own_needs_its_parent_too(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        parent = await new(store, 30)
        fork = await parent.fork(at=20)
        await go_on(fork, 30)
    statement = "DELETE FROM snapshots WHERE session = :parent AND revision < 25"
    found = await damaged(tmp_path / "rooms.db", statement, parent=parent.id)
    assert set(found) == {parent.id, fork.id}
    assert "its state at revision 20 cannot be read" in found[fork.id][0]


@pytest.mark.parametrize("table", ["entries", "snapshots", "blobs"])
async def test_what_belongs_to_no_session_is_found(tmp_path: Path, table: str) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        await family(store)
    statement = f"UPDATE {table} SET session = 'nobody' WHERE rowid = (SELECT max(rowid) FROM {table})"
    found = await damaged(tmp_path / "rooms.db", statement)
    (orphan,) = found[None]
    assert orphan.startswith(f"{table} of session 'nobody'")


async def test_entries_that_a_store_must_refuse_are_found() -> None:
    class Careless(MemoryStore):
        async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
            entries = [replace(entry, call_id="again") for entry in await super().entries(session)]
            body = write_body({"to": 5}, []).data
            return [*entries, Entry(4, "rewind", 0.0, body)]

    store = Careless()
    session = await new(store, 3)
    assert await problems(store) == {
        session.id: [
            "unexpected entries: 4",
            "the call id 'again' was used 3 times",
            "entry 4 rewinds to revision 5, which is not before it",
        ]
    }


@pytest.mark.every_store
async def test_every_session_is_visited_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.contract.HEADS_PER_PAGE", 7)
    ids = [(await new(store, 1)).id for _ in range(30)]

    async def remove_another(head: Head) -> str:
        if head.id == ids[20]:
            await store.delete(ids[3])
        return (await store.head(head.id)).id

    visited = [found async for _, found in each_session(store, remove_another)]
    assert sorted(visited) == sorted({*ids} - {ids[3]})


async def test_work_that_fails_ends_the_visit(store: Store) -> None:
    started = []
    for _ in range(20):
        await new(store, 1)

    async def fail(head: Head) -> None:
        started.append(head)
        raise LookupError

    with pytest.raises(LookupError):
        async for _ in each_session(store, fail):
            pass
    assert len(started) < 20


@pytest.mark.every_store
async def test_counting(store: Store) -> None:
    parent, fork, _, _ = await family(store)
    await new(store, 1, now=lambda: 5.0, ttl=1.0)
    calls = []
    now = (await store.head(parent)).created + 1
    found = await count_sessions(store, now=now, top=2, done=lambda: calls.append(1))
    assert found.sessions == {"notes": {"live": 3, "closed": 1, "expired": 1}}
    assert {head.id for head, _ in found.largest} == {parent, fork}
    assert found.largest[0][1] == await store.size(found.largest[0][0].id)
    assert found.sizes == await store.maintenance.sizes()
    assert len(calls) == 5
    assert (await count_sessions(store, now=now, top=0, done=lambda: None)).largest == []
