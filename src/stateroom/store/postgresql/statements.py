"""SQL statements, for the tables of one schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from stateroom.store.head_filter import HeadFilter, Order
from stateroom.store.postgresql.binary import text_or_real, whole
from stateroom.store.records import Entry, Head
from stateroom.store.tables import ENTRY_COLUMNS, HEAD_COLUMNS, PARTS, select_heads

COLUMNS = len(Head.__struct_fields__)
"""Of a head."""


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
        clauses, values = select_heads(wanted, order, last, text_or_real, r"'\xff'::bytea")
        numbers = count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", f"{clauses} LIMIT ?")
        return in_schema(f"SELECT {HEAD_COLUMNS} FROM @.sessions {numbered}", self.schema), [*values, whole(limit)]


def _marks(count: int, first: int = 1) -> str:
    return ", ".join(f"${number}" for number in range(first, first + count))
