"""Files of earlier versions: they are brought up to date, whole, and nothing in them is lost."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stateroom.errors import Conflict, DuplicateCall, ForeignStore, SessionClosed, StoreUnavailable
from stateroom.store import Commit, Entry, Head, Loaded, Snapshot, open_store
from stateroom.store.sqlite import SQLiteStore, file

FAR = 1e12

VERSION_1 = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    environment TEXT NOT NULL,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    revision INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    parent TEXT,
    parent_revision INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX sessions_by_age ON sessions (created, id);

CREATE INDEX sessions_by_expiry ON sessions (expires, closed);

CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE entries (
    session TEXT NOT NULL,
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    call_id TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (session, revision)
);

CREATE UNIQUE INDEX entries_by_call ON entries (session, call_id) WHERE call_id IS NOT NULL;

CREATE TABLE snapshots (
    session TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session, revision)
);

CREATE VIEW appends AS SELECT session, revision, kind, at, body, call_id, 0 AS closes FROM entries WHERE 0;

CREATE TRIGGER append INSTEAD OF INSERT ON appends BEGIN
    UPDATE sessions SET revision = NEW.revision
        WHERE id = NEW.session AND revision = NEW.revision - 1 AND closed = 0 AND expires > NEW.at;
    SELECT RAISE(ABORT, 'refused') WHERE changes() = 0;
    UPDATE sessions SET closed = 1 WHERE id = NEW.session AND NEW.closes;
    INSERT INTO entries (session, revision, kind, at, body, call_id)
        VALUES (NEW.session, NEW.revision, NEW.kind, NEW.at, NEW.body, NEW.call_id);
END;
"""

SESSIONS = [
    ("room", "env", "owner", 1.5, FAR, 0, 0, None, 0),
    ("fork", "env", "owner", 2.5, FAR, 2, 0, "room", 2),
    ("closed", "other", "owner", 3.5, FAR, 0, 0, None, 0),
]
APPENDS = [
    ("room", 1, "seed", 10.0, b"seed", None, 0),
    ("room", 2, "call", 11.0, b"\x00\xff", "call", 0),
    ("room", 3, "call", 12.0, b"", None, 0),
    ("fork", 3, "call", 13.0, b"own", "call", 0),
    ("closed", 1, "close", 14.0, b"", None, 1),
]


def make_version_1(path: Path) -> None:
    """A file as version 1 made it, with sessions as it wrote them."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in VERSION_1.split("\n\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {0x53524F4D}")
        connection.execute("PRAGMA user_version = 1")
        connection.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", SESSIONS)
        connection.executemany("INSERT INTO appends VALUES (?, ?, ?, ?, ?, ?, ?)", APPENDS)
        connection.execute("INSERT INTO snapshots VALUES ('room', 2, ?)", (b"state 2",))


def tables(path: Path) -> list[tuple[str, str]]:
    """The statements that would make the tables, and the version."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()
        return [*found, ("version", str(connection.execute("PRAGMA user_version").fetchone()[0]))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rooms.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def test_a_file_of_version_1_is_read_as_it_was(path: Path, url: str) -> None:
    make_version_1(path)
    room = Head("room", "env", "owner", 1.5, FAR, 3)
    fork = Head("fork", "env", "owner", 2.5, FAR, 3, parent="room", parent_revision=2)
    closed = Head("closed", "other", "owner", 3.5, FAR, 1, closed=True)
    entries = [
        Entry(1, "seed", 10.0, b"seed"),
        Entry(2, "call", 11.0, b"\x00\xff", "call"),
        Entry(3, "call", 12.0, b""),
    ]
    for _ in range(2):  # when it is brought up to date, and from then on
        async with open_store(url) as store:
            assert await store.heads() == [closed, fork, room]
            assert await store.entries("room") == entries
            assert await store.load("room") == Loaded(room, Snapshot(2, b"state 2"), entries[2:])
            assert await store.find_call("room", "call") == entries[1]
            assert await store.entries("fork") == [Entry(3, "call", 13.0, b"own", "call")]
            assert await store.children("room") == [fork]
            assert await store.orphans() == []


async def test_a_file_of_version_1_can_do_what_a_new_one_can(path: Path, url: str) -> None:
    make_version_1(path)
    async with open_store(url) as store:
        with pytest.raises(DuplicateCall):
            await store.append(Commit("room", Entry(4, "call", 20.0, b"", "call"), expires=None))
        with pytest.raises(SessionClosed):
            await store.append(Commit("closed", Entry(2, "call", 20.0, b""), expires=None))
        await store.append(Commit("room", Entry(4, "call", 20.0, b""), expires=None, blobs={"digest": b"large"}))
        leased = await store.lease("room", "me", now=20.0, until=30.0)
        assert leased == Head("room", "env", "owner", 1.5, FAR, 4, fence=1, holder="me", leased_until=30.0)
        with pytest.raises(Conflict):
            await store.append(Commit("room", Entry(5, "call", 20.0, b""), expires=None))
        await store.append(Commit("room", Entry(5, "call", 20.0, b""), expires=None, fence=1))
        assert await store.blobs("room", ["digest"]) == {"digest": b"large"}
        assert await store.prune("room", 2) == 1


async def test_an_old_file_ends_up_with_the_tables_of_a_new_one(tmp_path: Path) -> None:
    make_version_1(tmp_path / "old.db")
    for name in ("old", "new"):
        async with open_store(f"sqlite:///{tmp_path}/{name}.db"):
            pass
    assert tables(tmp_path / "old.db") == tables(tmp_path / "new.db")
    assert tables(tmp_path / "new.db")[-1] == ("version", "2")


async def test_stores_that_open_an_old_file_at_once_all_succeed(tmp_path: Path) -> None:
    for turn in range(10):
        make_version_1(tmp_path / f"{turn}.db")
        url = f"sqlite:///{tmp_path}/{turn}.db"
        stores = await asyncio.gather(*(SQLiteStore.open(url) for _ in range(6)))
        await stores[0].append(Commit("room", Entry(4, "call", 20.0, b""), expires=None))
        assert [(await store.head("room")).revision for store in stores] == [4] * 6
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_version_1(path)
    before = tables(path)
    broken = [*file.MIGRATIONS, "CREATE TABLE fine (a);\n\nCREATE TABLE not fine (a);"]
    with monkeypatch.context() as patched:
        patched.setattr(file, "MIGRATIONS", broken)
        patched.setattr(file, "VERSION", len(broken))
        with pytest.raises(StoreUnavailable, match="cannot open"):
            async with open_store(url):
                pass
    assert tables(path) == before
    async with open_store(url) as store:
        assert (await store.head("room")).revision == 3


async def test_a_process_of_version_1_that_has_the_file_open_can_do_no_harm(path: Path, url: str) -> None:
    make_version_1(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        append = "INSERT INTO appends VALUES (?, ?, ?, ?, ?, ?, ?)"
        old.execute(append, ("room", 4, "call", 20.0, b"", None, 0))
        async with open_store(url) as store:
            await store.lease("room", "me", now=20.0, until=30.0)
            with pytest.raises(sqlite3.OperationalError, match="8 columns"):  # it does not know of fences
                old.execute(append, ("room", 5, "call", 20.0, b"", None, 0))
            assert (await store.head("room")).revision == 4


async def test_a_version_that_is_not_known_yet_is_named(path: Path, url: str) -> None:
    make_version_1(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = tables(path)
    with pytest.raises(ForeignStore, match=r"store version 99; this one reads 2\); upgrade"):
        async with open_store(url):
            pass
    assert tables(path) == before
