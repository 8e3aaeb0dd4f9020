"""The index of a run: the position and the scalars of each row in its files.

It is an SQLite database beside the rollouts file, and only a cache that may be deleted. Files may grow while they are
indexed: each batch continues after the last whole line. A replaced or shortened file is indexed again.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from random import randrange
from threading import Lock
from typing import Any, NamedTuple, Self
from uuid import uuid4
from weakref import finalize

from stateroom.errors import BadTask, NotFound
from stateroom.jsonl import BOM, open_regular, read_lines
from stateroom.rollout.files import RunFiles
from stateroom.rollout.lazy import LazySequence
from stateroom.rollout.rows import Key, Row, key_of, parse_row
from stateroom.rollout.scalars import scalars_of

INDEXED = ("rollouts", "failures", "tool_failures", "inputs")
"""The files of a run that are indexed, in this order."""

FIRST_BATCH_BYTES, BATCH_BYTES = 2 << 20, 8 << 20
"""Bytes per batch. The first batch of a file is small, to show rows soon."""

MIN_BYTES_KEPT = 8 << 20
"""The size from which a rollouts file keeps its index on disk, in bytes; smaller ones are indexed quickly."""

EDGE_BYTES = 4096
"""Bytes at the start and the end of the indexed part that identify a file."""

ROWS_COMPARED = 64
"""Rows per file that are compared with the file when an index is opened."""

ROWS_PER_FETCH = 1000
"""Rows of a result in memory at a time."""

LOCK_TIMEOUT_SECONDS = 30.0
"""The time to wait for another process that writes the same index, in seconds."""

VERSION = 3
"""The version of the tables below; an index of another version is rebuilt."""


def _table(name: str, columns: str) -> str:
    """The statement that creates a table whose columns hold only their declared type or NULL."""
    kinds = [column.split()[:2] for column in columns.split(",")]
    checks = " AND ".join(f"typeof({column}) IN ('{kind.lower()}', 'null')" for column, kind in kinds)
    return f"CREATE TABLE {name} ({columns}, CHECK ({checks}))"


TABLES = (
    _table(
        "files",
        """file TEXT PRIMARY KEY, offset INTEGER NOT NULL, lines INTEGER NOT NULL, unread INTEGER NOT NULL,
        first_unread INTEGER, torn INTEGER NOT NULL, size INTEGER, modified INTEGER NOT NULL, mark TEXT NOT NULL""",
    ),
    _table(
        "rows",
        """file TEXT NOT NULL, line INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
        task INTEGER NOT NULL, rollout INTEGER NOT NULL, reward REAL, failure TEXT, session TEXT, tool_calls REAL,
        turns INTEGER, tokens REAL, seconds REAL, cost REAL, chosen INTEGER NOT NULL, node TEXT, tool TEXT, model TEXT,
        terminal INTEGER NOT NULL, rescored INTEGER NOT NULL, before REAL, edited INTEGER NOT NULL,
        numbers BLOB NOT NULL, again INTEGER NOT NULL, id INTEGER PRIMARY KEY""",
    ),
    "CREATE INDEX by_task ON rows (file, task, rollout)",
    _table("about", "made TEXT NOT NULL, changes INTEGER NOT NULL"),
)

INPUTS = "rows WHERE file = 'inputs' AND NOT again"
"""The rows without a verdict."""

NO_REWARD = "SELECT count(*), min(line) FROM rows WHERE file = 'rollouts' AND failure IS NULL AND reward IS NULL"
"""The number of rows without a numeric reward, and the first of them."""

INSERT = f"""INSERT INTO rows VALUES ({", ".join("?" * 23)},
    ? IS NULL AND EXISTS (SELECT 1 FROM rows WHERE file = ? AND task = ? AND rollout = ?), ?)"""

MAX_LINES = 1 << 40
"""The range of ids for the lines of each file; rollouts come first."""


class Position(NamedTuple):
    """The indexed part of a file."""

    offset: int = 0
    lines: int = 0
    unread: int = 0
    """The number of lines that are not rows."""
    first_unread: int | None = None
    torn: int = 0
    """Bytes after the last whole line when the end was reached."""
    size: int | None = None
    """The size of the file when its end was reached; None before."""
    modified: int = 0
    mark: str = ""
    """Identifies the file and its indexed part."""


class RunIndex:
    """An index of the files of a run. Threads may share it, and processes may index the same files at once."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        self._lock = Lock()
        self._database = _open(files)
        finalize(self, self._database.close)  # an index may be dropped without `close`
        [(self._made,)] = self.select("SELECT made FROM about")

    @classmethod
    def of(cls, files: RunFiles, *names: str) -> Self:
        """The index of a run, up to date for all of its files or those with these names."""
        index = cls(files)
        while index.advance(*names):
            pass
        return index

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def stream(self, query: str, given: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, in batches; the index must not change meanwhile."""
        with self._lock:
            cursor = self._database.execute(query, given)
        while rows := self._fetched(cursor):
            yield from rows

    def _fetched(self, cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
        with self._lock:
            return cursor.fetchmany(ROWS_PER_FETCH)

    def select(self, query: str, given: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock:
            return self._database.execute(query, given).fetchall()

    @property
    def version(self) -> str:
        """A token that changes with each change of the index."""
        return f"{self._made}-{self.select('SELECT changes FROM about')[0][0]}"

    @property
    def progress(self) -> tuple[int, int]:
        """The indexed bytes, and the size of the files."""
        done = whole = 0
        for name in INDEXED:
            position, path = self._position(name), self._path(name)
            size = path.stat().st_size if path.is_file() else 0
            done += size if position.size == size else min(position.offset, size)
            whole += size
        return done, whole

    def warnings(self) -> list[str]:
        """Problems with the files: truncated lines, and lines that are not rows."""
        warnings = []
        for name in INDEXED:
            position, path = self._position(name), self._path(name)
            if position.unread:
                lines = "1 invalid line was" if position.unread == 1 else f"{position.unread:,} invalid lines were"
                warnings.append(f"{path.name}: {lines} skipped; see line {position.first_unread}")
            if position.torn:
                warnings.append(
                    f"{path.name}: line {position.lines + 1} is incomplete and was skipped: a process was killed while "
                    "writing it, or is still writing"
                )
            if path.exists() and not path.is_file():
                warnings.append(f"{path.name} was skipped, because it is not a regular file")
        [(count, line)] = self.select(NO_REWARD)
        if count:
            rows = "1 row has" if count == 1 else f"{count:,} rows have"
            warnings.append(f"{self.files.rollouts.name}: {rows} no finite reward; see line {line}")
        return warnings

    def ensure_whole(self, *names: str) -> None:
        """Raise `NotFound` if a file cannot be read, and `BadTask` for its first invalid line."""
        for name in names:
            position, path = self._position(name), self._path(name)
            if path.exists() and not path.is_file():
                raise NotFound(f"cannot read {path}: not a regular file")
            if position.first_unread is not None:
                for number, line in read_lines(path):
                    if number == position.first_unread:
                        parse_row(line, number)

    # Whole rows.

    def row(self, file: str, line: int) -> Row:
        """The whole row in a line. Raises `NotFound` if it does not exist or was replaced."""
        places = self.select("SELECT offset, length, task, rollout FROM rows WHERE id = ?", (_id(file, line),))
        for offset, length, task, rollout in places:
            with suppress(OSError, BadTask), open_regular(self._path(file)) as content:
                content.seek(offset)
                row = parse_row(content.read(length).removeprefix(BOM), line)
                if key_of(row) == (task, rollout):
                    return row
        raise NotFound(f"{self._path(file).name} has no row in line {line}, or was replaced; reload the run")

    def rows(self, where: str, given: tuple[Any, ...] = (), order: str = "id") -> IndexedRows:
        """The rows that match a condition, read from their files on access."""
        ids = self.stream(f"SELECT id FROM rows WHERE {where} ORDER BY {order}", given)
        return IndexedRows(self, array("q", (identity for (identity,) in ids)))

    @property
    def inputs(self) -> InputRows:
        """The rows without a verdict, by key."""
        return InputRows(self)

    def lines(self, file: str, where: str) -> set[int]:
        """The numbers of the lines that match a condition."""
        numbers = self.stream(f"SELECT line FROM rows WHERE file = '{file}' AND {where}")
        return {line for (line,) in numbers}

    # Reading.

    def advance(self, *names: str) -> bool:
        """Index the next batch of lines; returns False if nothing is new."""
        return any(self._advance(name) for name in names or INDEXED)

    def _advance(self, name: str) -> bool:
        known = self._position(name)
        try:
            file = open_regular(self._path(name))
        except OSError:
            return known != Position() and self._commit(name, known, Position(), [], anew=True)
        with file:
            now = os.fstat(file.fileno())
            if (known.size, known.modified) == (now.st_size, now.st_mtime_ns):
                return False
            anew = known.size == now.st_size or known.mark != _mark(file, known.offset)
            start = Position() if anew else known
            rows, position = _read(file, name, start)
            mark = _mark(file, position.offset)
        if position.size is not None:
            position = position._replace(size=now.st_size, modified=now.st_mtime_ns)
        return self._commit(name, known, position._replace(mark=mark), rows, anew=anew)

    def _commit(self, name: str, known: Position, position: Position, rows: list[Any], *, anew: bool) -> bool:
        """Write a batch, unless another process wrote it first."""
        with self._lock, _transaction(self._database) as database:
            if self._stored(name) == known:
                if anew:
                    database.execute("DELETE FROM rows WHERE file = ?", (name,))
                database.executemany(INSERT, map(_to_insert, rows))
                database.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (name, *position))
                database.execute("UPDATE about SET changes = changes + 1")
        return True

    def _position(self, name: str) -> Position:
        with self._lock:
            return self._stored(name)

    def _stored(self, name: str) -> Position:
        row = self._database.execute("SELECT * FROM files WHERE file = ?", (name,)).fetchone()
        return Position() if row is None else Position(*row[1:])

    def _path(self, name: str) -> Path:
        return getattr(self.files, name)  # type: ignore[no-any-return]


class IndexedRows(LazySequence[Row]):
    """Rows in the files of a run, with 8 bytes in memory each. Raises `NotFound` for a row that has disappeared."""

    def __init__(self, index: RunIndex, ids: array[int]) -> None:
        self._index = index
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def _item(self, index: int) -> Row:
        return self._index.row(*_place(self._ids[index]))


class InputRows(Mapping[Key, Row]):
    """The rows of a run without a verdict, sorted by key and read on access."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index

    def __len__(self) -> int:
        [(count,)] = self._index.select(f"SELECT count(*) FROM {INPUTS}")
        return count  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Key]:
        return self._index.stream(f"SELECT task, rollout FROM {INPUTS} ORDER BY task, rollout")

    def __getitem__(self, key: Key) -> Row:
        lines = self._index.select(f"SELECT line FROM {INPUTS} AND task = ? AND rollout = ?", key)
        if not lines:
            raise KeyError(key)
        return self._index.row("inputs", lines[0][0])


# The database.


def _open(files: RunFiles) -> sqlite3.Connection:
    """The index beside a large file if it can be written there, otherwise a temporary one."""
    path = files.index
    large = files.rollouts.exists() and files.rollouts.stat().st_size >= MIN_BYTES_KEPT
    is_ours = not path.is_symlink() and (path.is_file() or not path.exists())
    for _ in range(2 if large and is_ours else 0):
        try:
            return _connect(str(path), files)
        except sqlite3.OperationalError:  # the folder is read-only
            break
        except sqlite3.DatabaseError:  # it is damaged, of another version, or does not match the files
            path.unlink(missing_ok=True)
    return _connect("", files)


def _connect(path: str, files: RunFiles) -> sqlite3.Connection:
    """Open or create an index. Raises `sqlite3.DatabaseError` if it is not an index of these files."""
    database = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA synchronous = OFF")  # an index that a power loss damages is rebuilt
        with _transaction(database):
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in TABLES:
                    database.execute(statement)
                database.execute("INSERT INTO about VALUES (?, 0)", (uuid4().hex,))
                database.execute(f"PRAGMA user_version = {VERSION}")
        if path:
            _check(database, files)
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield database


def _check(database: sqlite3.Connection, files: RunFiles) -> None:
    """Raise `sqlite3.DatabaseError` if an index is damaged, of another version, or does not match its files.

    Only some rows are compared, because an index must open without reading all of them.
    """
    statements = {statement for (statement,) in database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    version, about = database.execute("PRAGMA user_version").fetchone(), database.execute("PRAGMA quick_check(1)")
    if (version, statements, about.fetchall()) != ((VERSION,), {*TABLES}, [("ok",)]):
        raise sqlite3.DatabaseError("not an index")
    if database.execute("SELECT count(*) FROM about").fetchone() != (1,):
        raise sqlite3.DatabaseError("not an index")
    for name in INDEXED:
        row = database.execute("SELECT * FROM files WHERE file = ?", (name,)).fetchone()
        known = Position() if row is None else Position(*row[1:])
        with suppress(OSError), open_regular(getattr(files, name)) as file:
            if known.offset and known.mark == _mark(file, known.offset):  # otherwise it is indexed again
                _compare_rows(database, name, file, known.lines)


def _compare_rows(database: sqlite3.Connection, name: str, file: BufferedReader, lines: int) -> None:
    """Raise `sqlite3.DatabaseError` if a sample of rows differs from the file."""
    for _ in range(ROWS_COMPARED):
        some = _id(name, randrange(max(lines, 0) + 1))
        row = database.execute("SELECT * FROM rows WHERE file = ? AND id >= ? LIMIT 1", (name, some)).fetchone()
        if row is None:
            continue
        _, line, offset, length, *scalars, _, identity = row
        file.seek(offset)
        try:
            is_same = (*scalars,) == scalars_of(file.read(length), line) and identity == _id(name, line)
        except (OverflowError, BadTask):
            is_same = False
        if not is_same:
            raise sqlite3.DatabaseError("its rows are not those of the file")


# The files.


def _mark(file: BufferedReader, offset: int) -> str:
    """Identifies a file up to an offset, by the first and last bytes."""
    file.seek(0)
    digest = blake2b(file.read(min(EDGE_BYTES, offset)), digest_size=16)
    file.seek(max(0, offset - EDGE_BYTES))
    digest.update(file.read(min(EDGE_BYTES, offset)))
    return f"{os.fstat(file.fileno()).st_ino}-{digest.hexdigest()}" if offset else ""


def _id(name: str, line: int) -> int:
    return MAX_LINES * INDEXED.index(name) + line


def _place(identity: int) -> tuple[str, int]:
    """The file and the line of a row."""
    return INDEXED[identity // MAX_LINES], identity % MAX_LINES


def _to_insert(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of `INSERT`; some repeat, because early releases of 3.12 warn about numbered placeholders."""
    *values, identity = row
    file, task, rollout, node = row[0], row[4], row[5], row[15]
    return (*values, node, file, task, rollout, identity)


def _read(file: BufferedReader, name: str, start: Position) -> tuple[list[tuple[Any, ...]], Position]:
    """The rows of the next batch of lines, and the position after them."""
    size, first = BATCH_BYTES if start.offset else FIRST_BATCH_BYTES, _id(name, 0)
    file.seek(start.offset)
    read = file.read(size)
    while len(read) >= size and b"\n" not in read[-size:] and (more := file.read(size)):  # a long line
        read += more
    *lines, rest = read.split(b"\n")
    rows: list[tuple[Any, ...]] = []
    offset, count, unread, first_unread = start.offset, start.lines, start.unread, start.first_unread
    for line in lines:
        count += 1
        try:
            if line and not line.isspace():
                rows.append((name, count, offset, len(line), *scalars_of(line, count), first + count))
        except BadTask:
            unread, first_unread = unread + 1, first_unread or count
        offset += len(line) + 1
    if len(read) >= size:
        return rows, Position(offset, count, unread, first_unread)
    try:
        if rest and not rest.isspace():  # the last row may lack only the line break
            rows.append((name, count + 1, offset, len(rest), *scalars_of(rest, count + 1), first + count + 1))
        offset, rest = offset + len(rest), b""
    except BadTask:
        pass
    return rows, Position(offset, count, unread, first_unread, len(rest), size=0)
