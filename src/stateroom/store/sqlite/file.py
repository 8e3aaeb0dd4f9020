"""The SQLite file: its tables, its version, and how it is opened."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from stateroom.errors import ForeignStore, StateroomError, StoreUnavailable
from stateroom.store.records import check_version

APPLICATION_ID = 0x53524F4D  # "SROM", so that a file says whose it is
BUSY_SECONDS = 30.0
"""Seconds to wait for another process that is writing."""
MAX_IDLE_LOG = 8 * 1024 * 1024
"""Bytes that the write-ahead log may keep on disk after a checkpoint."""

TABLES = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    environment TEXT NOT NULL,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    revision INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    parent TEXT,
    parent_revision INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    holder TEXT,
    leased_until REAL NOT NULL,
    phase TEXT,
    reward REAL
) WITHOUT ROWID;

CREATE INDEX sessions_by_age ON sessions (created, id);

CREATE INDEX sessions_by_expiry ON sessions (expires, closed);

CREATE INDEX sessions_by_owner ON sessions (owner, created, id);

CREATE INDEX sessions_by_reward ON sessions (reward, created, id) WHERE reward IS NOT NULL;

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

CREATE TABLE blobs (
    session TEXT NOT NULL,
    digest TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session, digest)
);

CREATE VIEW appends AS SELECT session, revision, kind, at, body, call_id, 0 AS closes, 0 AS fence FROM entries WHERE 0;

CREATE TRIGGER append INSTEAD OF INSERT ON appends BEGIN
    UPDATE sessions SET revision = NEW.revision
        WHERE id = NEW.session AND revision = NEW.revision - 1 AND fence = NEW.fence AND closed = 0
            AND expires > NEW.at;
    SELECT RAISE(ABORT, 'refused') WHERE changes() = 0;
    UPDATE sessions SET closed = 1 WHERE id = NEW.session AND NEW.closes;
    INSERT INTO entries (session, revision, kind, at, body, call_id)
        VALUES (NEW.session, NEW.revision, NEW.kind, NEW.at, NEW.body, NEW.call_id);
END;
"""

MIGRATIONS = [TABLES]
"""Each makes a version of the file from the one before; a new file goes through all. A released one never changes."""
VERSION = len(MIGRATIONS)


def connect(path: Path) -> sqlite3.Connection:
    """Open the file; a new one is created for its owner alone.

    SQLite gives the files beside it the same permissions. Text is read as bytes, so that damaged text can be detected.
    """
    connection = None
    try:
        if not path.parent.is_dir():
            raise StoreUnavailable(f"cannot open {path}: the folder {path.parent} does not exist")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.text_factory = bytes
        _prepare(connection, path)
    except (sqlite3.Error, OSError, ValueError, StateroomError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StateroomError):
            raise
        if code_of(error) == sqlite3.SQLITE_NOTADB:
            raise ForeignStore(f"{path} is not a Stateroom store: it is not an SQLite file") from error
        raise StoreUnavailable(f"cannot open {path}: {error}") from error
    return connection


def code_of(error: Exception) -> int | None:
    """SQLite's code of an error; None for one of Python's own module."""
    return getattr(error, "sqlite_errorcode", None)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file is ours, and bring it to our version."""
    connection.execute("BEGIN")  # one consistent read: another process may be setting it up
    version = _version(connection, path)
    connection.execute("COMMIT")
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _switch_to_wal(connection)
    if version < VERSION:
        _migrate(connection, path)
    connection.execute("PRAGMA synchronous = FULL")  # an acknowledged commit survives a loss of power
    connection.execute(f"PRAGMA journal_size_limit = {MAX_IDLE_LOG}")
    connection.execute("PRAGMA secure_delete = ON")  # what is removed is overwritten


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file up to our version, all or nothing; another process that opens it meanwhile waits."""
    connection.execute("BEGIN IMMEDIATE")
    for migration in MIGRATIONS[_version(connection, path) :]:
        for statement in migration.split("\n\n"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Turn write-ahead logging on. If several connections do so at once, SQLite refuses some instead of waiting."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 if it is empty; raises if the file is not ours, or newer."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or application):
        raise ForeignStore(f"{path} is an SQLite file of another program, not a Stateroom store")
    check_version(str(path), version, VERSION)
    return int(version) if application == APPLICATION_ID else 0
