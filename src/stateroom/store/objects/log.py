"""A session's log as bytes: records, the index of a run of them, and the segments in which they rest."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from stateroom.errors import BadData
from stateroom.store.contract import Entry, Snapshot

TAIL = 4_096
"""Up to so many bytes of records are kept in the head itself, and written with it. Longer than that is a segment."""
FAN = 8
"""So many segments of one size become one of the next, which is as many times larger."""
WHOLE = 4
"""Segments of this level are not merged with one another: reading so much would hold up an append for too long."""
BLOB_ROW = 96
"""About how many bytes a mention of a blob takes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Where a large value is."""

    digest: str
    name: str
    size: int


class Index(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What is in a run of records, and at which byte each begins."""

    entries: tuple[tuple[int, int, str | None], ...] = ()
    """Revision, position and call id."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """Revision and position."""
    blobs: tuple[Blob, ...] = ()

    @cached_property
    def calls(self) -> dict[str, int]:
        """The revisions of call ids."""
        return {call_id: revision for revision, _, call_id in self.entries if call_id is not None}

    def moved(self, by: int) -> Index:
        """The index of the same records that begin so many bytes further on."""
        entries = tuple((revision, position + by, call_id) for revision, position, call_id in self.entries)
        return Index(entries, tuple((revision, position + by) for revision, position in self.snapshots), self.blobs)

    def span(self, after: int, until: int, size: int) -> tuple[int, int]:
        """Where the entries above one revision and up to another are, in a run of so many bytes."""
        starts = [position for revision, position, _ in self.entries if after < revision <= until]
        past = [position for revision, position, _ in self.entries if revision > until]
        return (starts[0] if starts else size), (past[0] if past else size)

    def newest_snapshot(self, until: int) -> tuple[int, int] | None:
        """Revision and position of the newest snapshot at or before a revision."""
        return max((row for row in self.snapshots if row[0] <= until), default=None)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Records, one after another in the order of their revisions, with their index."""

    records: bytes = b""
    index: Index = Index()

    @property
    def weight(self) -> int:
        """How much room it takes, about."""
        return len(self.records) + BLOB_ROW * len(self.index.blobs)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """What a head knows of one of its segments: an object with the records of a run, and its index behind them."""

    name: str
    size: int
    """Of the records, in bytes."""
    index_size: int
    entries: int
    first: int
    """The lowest revision of an entry, and the highest; 0 if it has none."""
    last: int
    snapshots: int
    snapshot_bytes: int
    oldest_snapshot: int
    """Its revision; -1 if there is none."""
    newest_snapshot: int
    newest_position: int
    blobs: int
    blob_bytes: int


def make_run(entries: Sequence[Entry], snapshots: Sequence[Snapshot] = (), blobs: Sequence[Blob] = ()) -> Run:
    """Put entries and snapshots in order; a snapshot comes after the entry of its revision."""
    parts: list[bytes] = []
    entry_rows: list[tuple[int, int, str | None]] = []
    snapshot_rows: list[tuple[int, int]] = []
    position = 0
    items: list[Entry | Snapshot] = [*entries, *snapshots]
    for item in sorted(items, key=lambda item: (item.revision, isinstance(item, Snapshot))):
        if isinstance(item, Snapshot):
            snapshot_rows.append((item.revision, position))
        else:
            entry_rows.append((item.revision, position, item.call_id))
        body = _encode(msgspec.structs.astuple(item))
        parts += (len(body).to_bytes(4, "big"), body)
        position += 4 + len(body)
    return Run(b"".join(parts), Index(tuple(entry_rows), tuple(snapshot_rows), tuple(blobs)))


def join(runs: Iterable[Run]) -> Run:
    """Runs that follow one another, as one."""
    whole = Run()
    for run in runs:
        moved = run.index.moved(len(whole.records))
        index = Index(
            whole.index.entries + moved.entries,
            whole.index.snapshots + moved.snapshots,
            whole.index.blobs + moved.blobs,
        )
        whole = Run(whole.records + run.records, index)
    return whole


def read_records(records: bytes) -> Iterator[Entry | Snapshot]:
    """The entries and snapshots of a run, or of a part of it that begins at a record."""
    position = 0
    while position < len(records):
        start = position + 4
        position = start + int.from_bytes(records[start - 4 : start], "big")
        try:
            fields: list[Any] = _decode(records[start:position])
            yield Snapshot(*fields) if len(fields) == 2 else Entry(*fields)
        except (msgspec.DecodeError, TypeError) as error:
            raise BadData(f"a record of a segment cannot be read: {error}") from error


def make_segment(name: str, run: Run) -> tuple[Segment, bytes]:
    """A segment of a run's records, and the bytes of its object."""
    index = run.index
    tail = _encode(index)
    revisions = [revision for revision, _, _ in index.entries]
    newest = max(index.snapshots, default=(-1, 0))
    starts = sorted([position for _, position, _ in index.entries] + [position for _, position in index.snapshots])
    ends = dict(pairwise([*starts, len(run.records)]))
    segment = Segment(
        name,
        size=len(run.records),
        index_size=len(tail),
        entries=len(revisions),
        first=min(revisions, default=0),
        last=max(revisions, default=0),
        snapshots=len(index.snapshots),
        snapshot_bytes=sum(ends[position] - position for _, position in index.snapshots),
        oldest_snapshot=min(index.snapshots, default=(-1, 0))[0],
        newest_snapshot=newest[0],
        newest_position=newest[1],
        blobs=len(index.blobs),
        blob_bytes=sum(blob.size for blob in index.blobs),
    )
    return segment, run.records + tail


def decode_index(data: bytes) -> Index:
    """The index at the end of a segment."""
    try:
        return msgspec.msgpack.decode(data, type=Index)
    except msgspec.DecodeError as error:
        raise BadData(f"the index of a segment cannot be read: {error}") from error


def count_merged(segments: Sequence[Segment], size: int) -> int:
    """How many of the last segments are to become one with a new run of so many bytes.

    Those that are smaller than it, and as many of its own size as make the next: so sizes never grow from the oldest
    to the newest, there are fewer than `FAN` of each, and a byte is written again once for each size it passes.
    """
    merged = 0
    while True:
        level = _level(size)
        rest = [_level(segment.size) for segment in segments[: len(segments) - merged]]
        smaller = _count_last(rest, range(level))
        equal = _count_last(rest[: len(rest) - smaller], range(level, level + 1))
        count = smaller + (equal if equal >= FAN - 1 and level < WHOLE else 0)
        if not count:
            return merged
        size += sum(segment.size for segment in segments[len(rest) - count : len(rest)])
        merged += count


def _count_last(levels: Sequence[int], wanted: Container[int]) -> int:
    return next((count for count, level in enumerate(reversed(levels)) if level not in wanted), len(levels))


def _level(size: int) -> int:
    """0 below eight tails (32 kB), 1 below sixty-four (256 kB), 2 below 2 MB, 3 below 16 MB, and then 4."""
    return min(WHOLE, max(0, (size // TAIL).bit_length() - 1) // 3)
