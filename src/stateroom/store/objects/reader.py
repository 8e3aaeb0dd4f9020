"""What is read of a session's log: no more than is asked for, and all of it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from stateroom.errors import BadData
from stateroom.store.contract import Entry, Loaded, Record, Snapshot
from stateroom.store.objects.access import Access, View
from stateroom.store.objects.log import Segment, join, read_records

WORTH_ASKING = 64 * 1024
"""From a segment of so many bytes on, its index is asked where the entries are if only some of them are wanted."""


async def read_entries(access: Access, view: View, after: int, until: int) -> list[Entry]:
    """The entries above a revision, up to another."""
    pieces = await asyncio.gather(*_pieces(access, view, view.root.segments, after, until))
    items = read_records(b"".join([*pieces, view.root.tail.records]))
    return [item for item in items if isinstance(item, Entry) and after < item.revision <= until]


async def load(access: Access, view: View, until: int) -> Loaded:
    """The newest snapshot up to a revision, and the entries from there."""
    root = view.root
    in_tail = root.tail.index.newest_snapshot(until)
    if in_tail is not None:
        revision, position = in_tail
        records = root.tail.records[position:]
    else:
        found = await _find_snapshot(access, view, until)
        if found is None:
            return Loaded(root.head, None, await read_entries(access, view, 0, until))
        number, revision, position = found
        segment = root.segments[number]
        end = segment.size
        if segment.last > until:
            _, end = (await access.read_index(view, segment)).span(revision, until, segment.size)
        later = _pieces(access, view, root.segments[number + 1 :], revision, until)
        pieces = await asyncio.gather(access.read_part(view, segment.name, position, end), *later)
        records = b"".join([*pieces, root.tail.records])
    items = list(read_records(records))
    snapshot = next((item for item in items if isinstance(item, Snapshot)), None)
    if snapshot is None:
        raise BadData(f"there is no snapshot at revision {revision}")
    entries = [item for item in items if isinstance(item, Entry) and revision < item.revision <= until]
    return Loaded(root.head, snapshot, entries)


async def _find_snapshot(access: Access, view: View, until: int) -> tuple[int, int, int] | None:
    """The segment that has the newest snapshot up to a revision, by its number, with its revision and position."""
    for number, segment in reversed(list(enumerate(view.root.segments))):
        if not segment.snapshots or segment.oldest_snapshot > until:
            continue
        if segment.newest_snapshot <= until:
            return number, segment.newest_snapshot, segment.newest_position
        found = (await access.read_index(view, segment)).newest_snapshot(until)
        return (number, *found) if found else None
    return None


def _pieces(
    access: Access, view: View, segments: tuple[Segment, ...], after: int, until: int
) -> list[Coroutine[Any, Any, bytes]]:
    """Reads of those segments, or parts of them, that have entries between two revisions."""
    wanted = [segment for segment in segments if segment.entries and segment.last > after and segment.first <= until]
    return [_read_piece(access, view, segment, after, until) for segment in wanted]


async def _read_piece(access: Access, view: View, segment: Segment, after: int, until: int) -> bytes:
    start, end = 0, segment.size
    if segment.size >= WORTH_ASKING and (segment.first <= after or segment.last > until):
        start, end = (await access.read_index(view, segment)).span(after, until, segment.size)
    return await access.read_part(view, segment.name, start, end)


async def find_call(access: Access, view: View, call_id: str) -> int | None:
    """The revision of a call, if it was made."""
    for index in reversed(await access.read_indexes(view)):
        if call_id in index.calls:
            return index.calls[call_id]
    return None


async def find_blobs(access: Access, view: View) -> dict[str, tuple[str, int]]:
    """The names and sizes of all blobs, by their digests."""
    indexes = await access.read_indexes(view)
    return {blob.digest: (blob.name, blob.size) for index in indexes for blob in index.blobs}


async def read_blobs(access: Access, view: View, digests: set[str] | None = None) -> dict[str, bytes]:
    """Blobs that are asked for and there, or all."""
    there = await find_blobs(access, view)
    wanted = [digest for digest in there if digests is None or digest in digests]
    bodies = await asyncio.gather(*(access.read_part(view, there[each][0], 0, there[each][1]) for each in wanted))
    return dict(zip(wanted, bodies, strict=True))


async def read_log(access: Access, view: View) -> tuple[list[Entry], list[Snapshot]]:
    """All entries and all snapshots."""
    runs = await asyncio.gather(*(access.read_run(view, segment) for segment in view.root.segments))
    items = list(read_records(join([*runs, view.root.tail]).records))
    entries = [item for item in items if isinstance(item, Entry)]
    return entries, [item for item in items if isinstance(item, Snapshot)]


async def read_all(access: Access, view: View) -> Record:
    """All of a session."""
    entries, snapshots = await read_log(access, view)
    return Record(view.root.head, entries, snapshots, await read_blobs(access, view))
