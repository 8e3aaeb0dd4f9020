"""Care for the tables: whole sessions out and in, what belongs to nobody, and the space it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from stateroom.errors import BadData, StoreError, UnknownRevision, UnknownSession
from stateroom.store.contract import Entry, Head, Record, Snapshot
from stateroom.store.postgresql.connection import LONG, Link
from stateroom.store.postgresql.schema import transaction
from stateroom.store.postgresql.statements import Statements
from stateroom.store.postgresql.values import (
    BYTES,
    WHOLE,
    Value,
    array,
    bytes_item,
    entry_columns,
    head_values,
    real,
    shown,
    text,
    text_item,
    to_entry,
    to_head,
    to_text,
    whole,
    whole_item,
)

T = TypeVar("T")

HEADS_AT_ONCE = 1_000

BYTES_AT_ONCE = 16 * 1024 * 1024
"""About how much one statement carries: the server takes at most 1 GiB."""


async def export(link: Link, sql: Statements, session: str) -> Record:
    async with transaction(link, b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
        key = [text(session)]
        heads = await link.ask(sql.head, key, LONG)
        entries = await link.ask(sql.all_entries, key, LONG)
        snapshots = await link.ask(sql.all_snapshots, key, LONG)
        blobs = await link.ask(sql.all_blobs, key, LONG)
    if not heads:
        raise UnknownSession(session)
    return Record(
        to_head(heads[0]),
        [to_entry(session, row) for row in entries],
        [Snapshot(*row) for row in snapshots],
        {to_text(digest): body for digest, body in blobs},
    )


async def restore(link: Link, sql: Statements, record: Record) -> None:
    head = record.head
    key = text(head.id)
    async with transaction(link):
        kept = await link.ask(sql.lock, [key], LONG)
        if kept and not head.continues(to_head(kept[0])):
            raise StoreError(f"there is another session {head.id!r} already, or a later moment of this one")
        await _keep_parent(link, sql, head)
        await link.ask(sql.put_head, head_values(head), LONG)
        for entries in _portions(record.entries, _weight):
            await link.ask(sql.put_entries, [key, *entry_columns(entries)], LONG)
        for snapshots in _portions(record.snapshots, _weight):
            await link.ask(sql.put_snapshots, [key, *_snapshot_columns(snapshots)], LONG)
        for blobs in _portions(list(record.blobs.items()), lambda blob: len(blob[1])):
            await link.ask(sql.put_blobs, [key, *_blob_columns(blobs)], LONG)


async def _keep_parent(link: Link, sql: Statements, head: Head) -> None:
    """See to it that the session which this one forks from is there, has come as far, and stays."""
    if head.parent is None:
        return
    rows = await link.ask(sql.keep, [text(head.parent)], LONG)
    if not rows:
        raise UnknownSession(head.parent)
    if rows[0][0] < head.parent_revision:
        raise UnknownRevision(head.parent, f"session {head.parent!r} has no revision {head.parent_revision}")


def _portions(items: Sequence[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    portion: list[T] = []
    carried = 0
    for item in items:
        portion.append(item)
        carried += weight(item)
        if carried > BYTES_AT_ONCE:
            yield portion
            portion, carried = [], 0
    if portion:
        yield portion


def _weight(item: Entry | Snapshot) -> int:
    return len(item.body)


def _snapshot_columns(snapshots: Sequence[Snapshot]) -> list[Value]:
    return [
        array(WHOLE, [whole_item(snapshot.revision) for snapshot in snapshots]),
        array(BYTES, [bytes_item(snapshot.body) for snapshot in snapshots]),
    ]


def _blob_columns(blobs: Sequence[tuple[str, bytes]]) -> list[Value]:
    return [
        array(BYTES, [text_item(digest) for digest, _ in blobs]),
        array(BYTES, [bytes_item(body) for _, body in blobs]),
    ]


async def orphans(link: Link, sql: Statements) -> list[str]:
    found = []
    for table, statement in sql.orphans.items():
        rows = await link.ask(statement, (), LONG)
        found += [f"{table} of session {shown(session)!r}, which is gone: {count}" for session, count in rows]
    forks = await link.ask(sql.lost_forks, (), LONG)
    found += [
        f"session {shown(fork)!r}, forked from session {shown(parent)!r}, which is gone" for fork, parent in forks
    ]
    return found + await _damages(link, sql)


async def _damages(link: Link, sql: Statements) -> list[str]:
    """The sessions whose heads cannot be read, in words."""
    found: list[str] = []
    last: tuple[Value, ...] = ()
    while rows := await link.ask(sql.heads[False, bool(last)], [whole(HEADS_AT_ONCE), *last], LONG):
        for row in rows:
            try:
                to_head(row)
            except BadData as error:
                found.append(str(error))
        last = (real(rows[-1][3]), rows[-1][0])
    return found


async def vacuum(link: Link, sql: Statements) -> None:
    """Remove what belongs to no session, and make the space of all that was removed free for what comes."""
    for statement in (*sql.remove_orphans, *sql.vacuum):
        await link.ask(statement, (), LONG)
