"""Schema migrations of an SQLite file: in order, whole or not at all, and never back."""

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from stateroom.errors import StoreUnavailable
from stateroom.store import Entry, Head, open_store
from stateroom.store.sqlite import file
from tests.messages import raises
from tests.store.rooms import visit

NEXT = "CREATE TABLE fine (a);\n\nALTER TABLE blobs ADD COLUMN fine INTEGER;"


@pytest.fixture
async def older(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the present version, and a next version with one more migration."""
    async with open_store(url) as store:
        await store.create(Head("room", "env", "owner", 1.5, 1e12, 1), [Entry(1, "seed", 10.0, b"seed")])
    set_migrations(monkeypatch, [*file.MIGRATIONS, NEXT])


def set_migrations(monkeypatch: pytest.MonkeyPatch, migrations: list[str]) -> None:
    monkeypatch.setattr(file, "MIGRATIONS", migrations)
    monkeypatch.setattr(file, "VERSION", len(migrations))


def tables(path: Path) -> list[tuple[str, str]]:
    """The statements that would make the tables, and the version."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()
        return [*found, ("version", str(connection.execute("PRAGMA user_version").fetchone()[0]))]


@pytest.mark.usefixtures("older")
async def test_an_older_file_gets_the_tables_of_a_new_one_and_keeps_its_sessions(tmp_path: Path, url: str) -> None:
    for _ in range(2):
        async with open_store(url) as store:
            assert await store.entries("room") == [Entry(1, "seed", 10.0, b"seed")]
    await visit(f"sqlite:///{tmp_path}/new.db")
    assert tables(tmp_path / "rooms.db") == tables(tmp_path / "new.db")
    assert tables(tmp_path / "new.db")[-1] == ("version", "2")


@pytest.mark.usefixtures("older")
async def test_stores_that_open_an_older_file_at_once_all_succeed(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = await asyncio.gather(*(stack.enter_async_context(open_store(url)) for _ in range(6)))
        assert [(await store.head("room")).revision for store in stores] == [1] * 6


@pytest.mark.usefixtures("older")
async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tables(path)
    with monkeypatch.context() as patched:
        set_migrations(patched, [*file.MIGRATIONS, "CREATE TABLE not fine (a);"])
        with raises(StoreUnavailable):
            await visit(url)
    assert tables(path) == before
    async with open_store(url) as store:
        assert (await store.head("room")).revision == 1
