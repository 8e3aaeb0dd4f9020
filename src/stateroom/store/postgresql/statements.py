"""SQL statements, and the binary form of their values.

In binary form nothing is quoted or escaped, and a column of a whole batch is one parameter. Text is kept as its UTF-8
bytes. So any text can be an id, also one with a NUL or half a surrogate pair, whatever the database's encoding; and ids
compare by code points, whatever its collation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from struct import Struct, error
from typing import Any

from msgspec.structs import astuple

from stateroom.errors import StoreError
from stateroom.store.head_filter import HeadFilter, Order
from stateroom.store.records import HEAD_TYPES, Entry, Head, Snapshot
from stateroom.store.tables import ENTRY_COLUMNS, HEAD_COLUMNS, PARTS, RowReader, select_heads

Value = bytes | None

READER = RowReader(lambda kept: kept.decode("utf-8", "surrogatepass"))

COLUMNS = len(Head.__struct_fields__)
"""Of a head."""

# PostgreSQL's numbers of its types.
BYTES, TEXT, WHOLE, REAL, TRUTH = 17, 25, 20, 701, 16

NO_ITEM = Struct("!i").pack(-1)
_pack_length = Struct("!i").pack
_pack_whole = Struct("!q").pack
_pack_real = Struct("!d").pack
_pack_whole_item = Struct("!iq").pack
_pack_real_item = Struct("!id").pack
_pack_array = Struct("!iiIii").pack
_TRUTHS = (b"\x00", b"\x01")
_TRUTH_ITEMS = tuple(_pack_length(1) + truth for truth in _TRUTHS)


def text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def text_or_none(value: str | None) -> Value:
    return None if value is None else text(value)


def whole(value: int) -> bytes:
    try:
        return _pack_whole(value)
    except error:
        raise _too_large(value) from None


def real(value: float) -> bytes:
    return _pack_real(value)


def real_or_none(value: float | None) -> Value:
    return None if value is None else real(value)


def to_value(value: str | float) -> bytes:
    return text(value) if isinstance(value, str) else real(value)


def truth(value: bool) -> bytes:
    return _TRUTHS[value]


# Items of arrays begin with their length.


def bytes_item(value: Value) -> bytes:
    return NO_ITEM if value is None else _pack_length(len(value)) + value


def text_item(value: str | None) -> bytes:
    return NO_ITEM if value is None else bytes_item(text(value))


def whole_item(value: int) -> bytes:
    try:
        return _pack_whole_item(8, value)
    except error:
        raise _too_large(value) from None


def real_item(value: float | None) -> bytes:
    return NO_ITEM if value is None else _pack_real_item(8, value)


def truth_item(value: bool) -> bytes:
    return _TRUTH_ITEMS[value]


def array(of: int, items: Sequence[bytes]) -> bytes:
    """An array of one type; its one dimension counts from 1."""
    return b"".join((_pack_array(1, 1, of, len(items), 1), *items))


def _too_large(value: int) -> StoreError:
    return StoreError(f"PostgreSQL cannot hold a number as large as {value}")


# Rows.


_ENCODERS: dict[type, Callable[[Any], bytes]] = {str: text, int: whole, float: real, bool: truth}
_HEAD_ENCODERS = [_ENCODERS[kind] for kind in HEAD_TYPES.values()]


def head_values(head: Head) -> list[Value]:
    """A head, as the values of its columns."""
    values = zip(_HEAD_ENCODERS, astuple(head), strict=True)
    return [None if value is None else encode(value) for encode, value in values]


def place_of_row(row: Sequence[Any], order: Order) -> tuple[bytes, ...]:
    """The place of a row of a head in a list; the row may be damaged."""
    age = real(row[3]), row[0]
    return (real(row[-1]), *age) if order == "reward" else age


def entry_columns(entries: Sequence[Entry]) -> list[Value]:
    """Entries, as an array for each of its columns."""
    return [
        array(WHOLE, [whole_item(entry.revision) for entry in entries]),
        array(BYTES, [text_item(entry.kind) for entry in entries]),
        array(REAL, [real_item(entry.at) for entry in entries]),
        array(BYTES, [bytes_item(entry.body) for entry in entries]),
        array(BYTES, [text_item(entry.call_id) for entry in entries]),
    ]


def snapshot_columns(snapshots: Sequence[Snapshot]) -> list[Value]:
    """Snapshots, as an array of revisions and one of bodies."""
    return [
        array(WHOLE, [whole_item(snapshot.revision) for snapshot in snapshots]),
        array(BYTES, [bytes_item(snapshot.body) for snapshot in snapshots]),
    ]


def blob_columns(blobs: Iterable[tuple[str, bytes]]) -> list[Value]:
    """Blobs, as an array of digests and one of bodies."""
    rows = list(blobs)
    return [
        array(BYTES, [text_item(digest) for digest, _ in rows]),
        array(BYTES, [bytes_item(body) for _, body in rows]),
    ]


# Statements.


def in_schema(sql: str, schema: str) -> bytes:
    """SQL with `@.` replaced by the name of a schema."""
    return sql.replace("@.", f'"{schema}".').encode()


class Statements:
    """All statements, for the tables of one schema; each text is the same every time."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

        def sql(text: str) -> bytes:
            return in_schema(text, schema)

        part = ", ".join(f"part.{name}" for name in Entry.__struct_fields__)

        self.append_one = sql(f"SELECT @.append_one({_marks(15)})")
        self.append = sql(f"SELECT @.append({_marks(16)})")
        self.create = sql(f"SELECT @.create_session(ROW({_marks(COLUMNS)})::@.sessions, {_marks(9, COLUMNS + 1)})")
        self.load = sql(f"SELECT (head).*, {ENTRY_COLUMNS} FROM @.load($1, $2)")
        self.head = sql(f"SELECT {HEAD_COLUMNS} FROM @.sessions WHERE id = $1")
        self.children = sql(f"SELECT {HEAD_COLUMNS} FROM @.sessions WHERE parent = $1 ORDER BY created, id")
        self.count = sql("SELECT count(*) FROM @.sessions WHERE expires > $1 AND NOT closed")

        self.touch = sql(
            "UPDATE @.sessions SET expires = $3 WHERE id = $1 AND NOT closed AND expires > $2 RETURNING true"
        )
        self.lease = sql(
            "UPDATE @.sessions SET fence = fence + (holder IS DISTINCT FROM $2)::int, holder = $2, leased_until = $4 "
            "WHERE id = $1 AND (holder IS NULL OR holder = $2 OR leased_until <= $3) "
            f"RETURNING {HEAD_COLUMNS}"
        )
        self.release = sql(
            "UPDATE @.sessions SET holder = NULL, leased_until = 0 WHERE id = $1 AND holder = $2 RETURNING true"
        )
        self.sweep = sql("SELECT @.sweep($1, $2)")
        self.delete = sql("SELECT @.delete_session($1)")

        # Of a session that is there but has none of what is asked for, there is one row of NULLs.
        self.entries = sql(
            f"SELECT {part} FROM @.sessions AS head LEFT JOIN @.entries AS part ON part.session = head.id "
            "AND part.revision > $2 AND part.revision <= coalesce($3, head.revision) "
            "WHERE head.id = $1 ORDER BY part.revision"
        )
        self.find_call = sql(
            f"SELECT {part} FROM @.sessions AS head LEFT JOIN @.entries AS part ON part.session = head.id "
            "AND part.call_id = $2 WHERE head.id = $1"
        )
        self.blobs = sql(
            "SELECT part.digest, part.body FROM @.sessions AS head LEFT JOIN @.blobs AS part "
            "ON part.session = head.id AND ($2::bytea[] IS NULL OR part.digest = ANY ($2)) WHERE head.id = $1"
        )

        # Maintenance.
        self.all_entries = sql(f"SELECT {ENTRY_COLUMNS} FROM @.entries WHERE session = $1 ORDER BY revision")
        self.all_snapshots = sql("SELECT revision, body FROM @.snapshots WHERE session = $1 ORDER BY revision")
        self.all_blobs = sql("SELECT digest, body FROM @.blobs WHERE session = $1")
        self.lock = sql(f"SELECT {HEAD_COLUMNS} FROM @.sessions WHERE id = $1 FOR UPDATE")
        self.keep = sql("SELECT revision FROM @.sessions WHERE id = $1 FOR KEY SHARE")
        given = ", ".join(f"EXCLUDED.{name}" for name in Head.__struct_fields__)
        self.put_head = sql(
            f"INSERT INTO @.sessions ({HEAD_COLUMNS}) VALUES ({_marks(COLUMNS)}) "
            f"ON CONFLICT (id) DO UPDATE SET ({HEAD_COLUMNS}) = ({given})"
        )
        self.put_entries = sql(
            f"INSERT INTO @.entries (session, {ENTRY_COLUMNS}) SELECT $1, given.* "
            "FROM unnest($2::bigint[], $3::bytea[], $4::float8[], $5::bytea[], $6::bytea[]) AS given "
            "ON CONFLICT (session, revision) DO NOTHING"
        )
        self.put_snapshots = sql(
            "INSERT INTO @.snapshots (session, revision, body) SELECT $1, given.* "
            "FROM unnest($2::bigint[], $3::bytea[]) AS given ON CONFLICT DO NOTHING"
        )
        self.put_blobs = sql(
            "INSERT INTO @.blobs (session, digest, body) SELECT $1, given.* "
            "FROM unnest($2::bytea[], $3::bytea[]) AS given ON CONFLICT DO NOTHING"
        )
        self.prune = sql(
            "WITH base AS ("
            " SELECT session, parent_revision + 1 AS first FROM @.snapshots AS part JOIN @.sessions ON id = session"
            " WHERE session = $1 AND part.revision = $2"
            "), forgotten AS ("
            " DELETE FROM @.snapshots AS part USING base WHERE part.session = base.session AND part.revision < $2"
            "), gone AS ("
            " DELETE FROM @.entries AS part USING base"
            " WHERE part.session = base.session AND part.revision > base.first AND part.revision <= $2 RETURNING 1"
            ") SELECT (SELECT count(*) FROM gone), EXISTS (SELECT FROM base)"
        )
        self.size = sql(
            " UNION ALL ".join(
                f"SELECT count(*), coalesce(sum(octet_length(body)), 0)::bigint FROM @.{table} WHERE session = $1"
                for table in PARTS
            )
        )
        self.sizes = sql(
            "SELECT 'sessions', count(*), coalesce("
            "sum(octet_length(id) + octet_length(environment) + octet_length(owner)), 0)::bigint FROM @.sessions "
            + "".join(
                f"UNION ALL SELECT '{table}', count(*), coalesce(sum(octet_length(body)), 0)::bigint FROM @.{table} "
                for table in PARTS
            )
            + "UNION ALL SELECT 'disk', sum(bytes)::bigint / current_setting('block_size')::bigint, sum(bytes)::bigint "
            "FROM (SELECT pg_total_relation_size(oid) AS bytes FROM pg_class "
            f"WHERE relnamespace = '\"{schema}\"'::regnamespace AND relkind = 'r') AS tables"
        )
        self.orphans = {
            table: sql(
                f"SELECT session, count(*) FROM @.{table} AS part "
                "WHERE NOT EXISTS (SELECT FROM @.sessions WHERE id = session) GROUP BY session ORDER BY session"
            )
            for table in PARTS
        }
        self.lost_forks = sql(
            "SELECT id, parent FROM @.sessions AS fork WHERE parent IS NOT NULL "
            "AND NOT EXISTS (SELECT FROM @.sessions AS head WHERE head.id = fork.parent) ORDER BY id"
        )
        self.remove_orphans = [
            sql(f"DELETE FROM @.{table} WHERE NOT EXISTS (SELECT FROM @.sessions WHERE id = session)")
            for table in PARTS
        ]
        self.vacuum = [sql(f"VACUUM (ANALYZE) @.{table}") for table in ("sessions", *PARTS)]

    def heads(self, wanted: HeadFilter, order: Order, last: Sequence[bytes], limit: int) -> tuple[bytes, list[bytes]]:
        """The statement of a list, and its values; it goes on after the place `last`, if there is one."""
        clauses, values = select_heads(wanted, order, last, to_value, r"'\xff'::bytea")
        numbers = count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", f"{clauses} LIMIT ?")
        return in_schema(f"SELECT {HEAD_COLUMNS} FROM @.sessions {numbered}", self.schema), [*values, whole(limit)]


def _marks(count: int, first: int = 1) -> str:
    return ", ".join(f"${number}" for number in range(first, first + count))
