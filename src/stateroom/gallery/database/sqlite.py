"""A SQLite database as a part of a state: its pages, connections to it, and the statements of a model."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from sys import getsizeof
from typing import Any, NamedTuple

from stateroom import State, ToolError

STEPS, TICK = 500_000, 1_000
"""The most steps of SQLite's virtual machine for a model's SQL, and the steps between two checks."""

LARGEST_RESULT = 16 << 20
"""The memory limit of the rows of a result, in bytes."""

COMPARED_STEPS, COMPARED_ROWS, COMPARED_BYTES = 50_000_000, 1_000_000, 1 << 30
"""The limits of steps, rows and bytes for the comparison of a table."""

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 5_000,  # of a value or a row: with the steps it bounds the memory
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

LARGEST = 16 << 20
"""The size limit of the database, in bytes."""

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
"""The actions that a query may take."""

WRITES = READS | {
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE),
    *(sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT),
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_REINDEX),
    *(sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW),
}
"""The actions that other statements may take: none outside the database or on its settings, and no ALTER TABLE, for
which SQLite needs printf, which can take seconds in one step."""

MESSAGES = {
    "interrupted": "the statement takes too long",
    "not authorized": "not allowed: PRAGMA, ALTER TABLE, triggers, other databases, and in a query all but SELECT",
}
"""Clearer texts for errors of SQLite."""

SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*'"

DATES = ("date", "datetime", "julianday", "strftime", "time", "unixepoch")
"""Functions that use the session's time as `now`."""

FUNCTIONS = {
    *DATES,
    *("abs", "avg", "ceil", "changes", "char", "coalesce", "count", "cume_dist", "dense_rank", "first_value", "floor"),
    *("glob", "group_concat", "hex", "ifnull", "iif", "instr", "lag", "last_insert_rowid", "last_value", "lead"),
    *("length", "like", "lower", "ltrim", "max", "min", "mod", "nth_value", "ntile", "nullif", "percent_rank", "quote"),
    *("rank", "replace", "round", "row_number", "rtrim", "sign", "substr", "substring", "sum", "total", "trim"),
    *("typeof", "unicode", "upper", "zeroblob"),
}
"""The allowed functions of SQLite, which are deterministic and fast."""


class Rows(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def is_same(self, other: Rows, *, ordered: bool = False) -> bool:
        """Whether the rows are the same, except for the last digits of sums, which depend on the order of additions."""
        mine, theirs = ([tuple(map(_rounded, row)) for row in each.rows] for each in (self, other))
        return mine == theirs if ordered else Counter(mine) == Counter(theirs)


class Database(State):
    """A SQLite database, page by page, so a call stores only the pages that it changed."""

    pages: list[bytes] = []
    query: str | None = None
    """The last submitted query."""

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection to a copy of the database; `keep` stores its changes."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.deserialize(b"".join(self.pages))
            connection.executescript("PRAGMA foreign_keys = ON; PRAGMA temp_store = FILE")  # a sort may be large
            yield connection

    def keep(self, connection: sqlite3.Connection) -> None:
        """Store the pages that differ in a connection's database."""
        [size] = connection.execute("PRAGMA page_size").fetchone()
        content = connection.serialize()
        pages = [content[start : start + size] for start in range(0, len(content), size)]
        for number, (old, new) in enumerate(zip(self.pages, pages, strict=False)):
            if old != new:
                self.pages[number] = new
        self.pages[len(pages) :] = pages[len(self.pages) :]

    def write_file(self, path: Path) -> None:
        """Write the database to a file that SQLite can open."""
        path.write_bytes(b"".join(self.pages))

    def select(self, sql: str, now: datetime, most: int, steps: int = STEPS, most_bytes: int = LARGEST_RESULT) -> Rows:
        """The first rows of a model's query. Raises `ToolError`."""
        with self.connection() as connection, _guarded(connection, READS, now, steps):
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise ToolError("the statement is not a query")
            return Rows([name for name, *_ in cursor.description], _fetched(cursor, most, most_bytes))

    def differences(self, other: Database, now: datetime) -> list[str]:
        """Tables, views, indexes and triggers that differ from another database, such as `table orders`."""
        if self.pages == other.pages:
            return []
        mine, theirs = (each._schema() for each in (self, other))
        both = mine.keys() & theirs.keys()
        changed = {part for part in both if mine[part] != theirs[part] or not self._has_same_rows(*part, other, now)}
        return sorted(" ".join(part) for part in (mine.keys() ^ theirs.keys()) | changed)

    def _schema(self) -> dict[tuple[str, str], Any]:
        """The definition of each table, view, index and trigger, by type and name, regardless of its spelling."""
        with self.connection() as connection:
            return {
                (kind, name): _declared(connection, kind, name, sql) for kind, name, sql in connection.execute(SCHEMA)
            }

    def _has_same_rows(self, kind: str, name: str, other: Database, now: datetime) -> bool:
        if kind != "table":
            return True
        sql = 'SELECT * FROM "{}"'.format(name.replace('"', '""'))
        theirs = other.select(sql, now, COMPARED_ROWS, COMPARED_STEPS, COMPARED_BYTES)
        try:
            mine = self.select(sql, now, len(theirs.rows) + 1, COMPARED_STEPS, COMPARED_BYTES)
        except ToolError:
            return False
        return mine.columns == theirs.columns and mine.is_same(theirs)

    def change(self, sql: str, now: datetime) -> int:
        """Run all of a model's statements or none, and count the changed rows. Raises `ToolError`."""
        with self.connection() as connection:
            connection.execute(f"PRAGMA max_page_count = {LARGEST // len(self.pages[0])}")
            with _guarded(connection, WRITES, now, STEPS):
                connection.executescript(sql)
            if connection.in_transaction:
                raise ToolError("the transaction is not committed")
            self.keep(connection)
            return connection.total_changes


def _fetched(cursor: sqlite3.Cursor, most: int, most_bytes: int) -> list[tuple[Any, ...]]:
    """The first rows of a result. Raises `ToolError` as soon as they exceed the size limit."""
    rows, size = [], 0
    for row in islice(cursor, most):
        size += getsizeof(row) + sum(map(getsizeof, row))
        if size > most_bytes:
            raise ToolError(f"the rows take more than {most_bytes:,} bytes; select less")
        rows.append(row)
    return rows


@contextmanager
def _guarded(connection: sqlite3.Connection, actions: set[int], now: datetime, steps: int) -> Iterator[None]:
    """Restrict a model's statements to these actions and limits; errors of SQLite become `ToolError`."""
    ticks = iter(range(steps // TICK))
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    with closing(sqlite3.connect(":memory:")) as dates:
        for name in DATES:
            connection.create_function(name, -1, partial(_dated, dates, name, now), deterministic=True)
        connection.set_progress_handler(lambda: next(ticks, None) is None, TICK)
        connection.set_authorizer(partial(_authorized, actions))
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise ToolError(MESSAGES.get(str(error), str(error))) from None
        finally:
            connection.set_authorizer(None)
            connection.set_progress_handler(None, 0)


def _authorized(actions: set[int], action: int, first: str | None, second: str | None, *_: object) -> int:
    allowed = action in actions and (action != sqlite3.SQLITE_FUNCTION or second in FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _dated(dates: sqlite3.Connection, name: str, now: datetime, *asked: Any) -> Any:
    """SQLite's function of this name, with the session's time in UTC instead of the machine's."""
    present = f"{now:%Y-%m-%d %H:%M:%S}"
    arguments = [present if _is(each, "now") else each for each in asked if not _is(each, "localtime", "utc")]
    if len(arguments) == (name == "strftime"):
        arguments.append(present)
    return dates.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]


def _is(value: Any, *words: str) -> bool:
    return isinstance(value, str) and value.lower() in words


def _declared(connection: sqlite3.Connection, kind: str, name: str, sql: str) -> Any:
    """The definition of a part of a schema: columns, keys, indexes and constraints of a table, otherwise the SQL."""
    words = "".join(sql.split()).casefold()
    if kind != "table":
        return words

    def listed(pragma: str, of: str, columns: str = "*") -> list[tuple[Any, ...]]:
        return sorted(connection.execute(f"SELECT {columns} FROM pragma_{pragma}(?)", (of,)), key=repr)

    automatic = listed("index_list", name, 'name, "unique", origin')
    return (
        connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall(),
        listed("foreign_key_list", name),
        [(unique, listed("index_info", index)) for index, unique, origin in automatic if origin != "c"],
        [words.count(word) for word in ("check(", "autoincrement", "collate", "withoutrowid", "generated")],
    )


def _rounded(cell: Any) -> Any:
    return round(cell, 6) if isinstance(cell, float) else cell
