"""The objects of a store: their names, head objects, and the segments of a log.

Ids are any text; an object's name has only characters that every service keeps apart, and is not too long.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from stateroom.errors import BadData
from stateroom.store.records import Entry, Head, Snapshot

MARK = "stateroom"
HEADS, RECENT, FORKS, DATA = "heads", "recent", "forks", "data"
FOLDERS = (HEADS, RECENT, FORKS, DATA)
OWNED = FOLDERS[1:]
"""The folders with the notes and the data of sessions."""

_PLAIN = re.compile("[a-z0-9_-]{1,64}")
_ALL_ONES = (1 << 64) - 1

TAIL_BYTES = 4_096
"""Bytes of records that are kept in the head object itself; more than that becomes a segment."""
SEGMENTS_PER_LEVEL = 8
"""Number of segments of one level that become one of the next, which is as many times larger."""
WHOLE = 4
"""Segments of this level are not merged: reading them would delay an append too long."""
BLOB_ROW_BYTES = 96
"""About the bytes of a reference to a blob."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

# Names.


def new_name() -> str:
    """A unique name."""
    return secrets.token_hex(8)


def key_of(session: str) -> str:
    """The key of a session in names: its id if that is harmless, else its digest."""
    if _PLAIN.fullmatch(session):
        return f"i-{session}"
    return f"h-{sha256(session.encode('utf-8', 'surrogatepass')).hexdigest()}"


def head_name(key: str) -> str:
    """The name of a session's head object."""
    return f"{HEADS}/{key}"


def key_in(name: str) -> str:
    """The key in the name of a head object."""
    return name.removeprefix(f"{HEADS}/")


def data_folder(key: str, life: str) -> str:
    """The folder of the segments and blobs of one life of a session."""
    return f"{DATA}/{key}.{life}"


def forks_folder(key: str) -> str:
    """The folder of the notes of a session's forks."""
    return f"{FORKS}/{key}"


def fork_name(parent: str, session: str, life: str) -> str:
    """The name of a fork's note at its parent."""
    return f"{forks_folder(key_of(parent))}/{key_of(session)}.{life}"


def age_of(created: float) -> str:
    """A time as text that sorts later times first."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", created + 0.0))  # -0.0 is 0.0
    ascending = bits ^ _ALL_ONES if bits >> 63 else bits | 1 << 63
    return f"{ascending ^ _ALL_ONES:016x}"


def environment_of(environment: str) -> str:
    """A short digest of an environment's name."""
    return sha256(environment.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def recent_name(head: Head, life: str) -> str:
    """The name of a session's note in the listing of all sessions, which is sorted by age."""
    return f"{RECENT}/{age_of(head.created)}.{key_of(head.id)}.{environment_of(head.environment)}.{life}"


class Owner(NamedTuple):
    """The owner of an object: one life of a session."""

    key: str
    life: str


def owner_of(name: str) -> Owner | None:
    """The owner of a note or of data, by its name; None if it is not a name of ours."""
    folder, _, rest = name.partition("/")
    match folder, rest.split("/"):
        case "recent", [note] if note.count(".") == 3:
            _, key, _, life = note.split(".")
        case "forks", [_, note] if note.count(".") == 1:
            key, life = note.split(".")
        case "data", [owner, _] if owner.count(".") == 1:
            key, life = owner.split(".")
        case _:
            return None
    return Owner(key, life)


# Logs.


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A reference to a large value."""

    digest: str
    name: str
    size: int


class LogIndex(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The contents of a run of records, and the position of each."""

    entries: tuple[tuple[int, int, str | None], ...] = ()
    """Revision, position and call id."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """Revision and position."""
    blobs: tuple[Blob, ...] = ()

    @cached_property
    def calls(self) -> dict[str, int]:
        """The revisions of call ids."""
        return {call_id: revision for revision, _, call_id in self.entries if call_id is not None}

    def moved(self, by: int) -> LogIndex:
        """The index of the same records, `by` bytes further on."""
        entries = tuple((revision, position + by, call_id) for revision, position, call_id in self.entries)
        return LogIndex(entries, tuple((revision, position + by) for revision, position in self.snapshots), self.blobs)

    def span(self, after: int, until: int, size: int) -> tuple[int, int]:
        """Start and end of the entries above one revision and up to another, in a run of `size` bytes."""
        starts = [position for revision, position, _ in self.entries if after < revision <= until]
        past = [position for revision, position, _ in self.entries if revision > until]
        return (starts[0] if starts else size), (past[0] if past else size)

    def newest_snapshot(self, until: int) -> tuple[int, int] | None:
        """Revision and position of the newest snapshot at or before a revision."""
        return max((row for row in self.snapshots if row[0] <= until), default=None)


class LogRun(msgspec.Struct, frozen=True, array_like=True):
    """Records in the order of their revisions, with their index."""

    records: bytes = b""
    index: LogIndex = LogIndex()

    @property
    def weight(self) -> int:
        """About the bytes that it takes."""
        return len(self.records) + BLOB_ROW_BYTES * len(self.index.blobs)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A head's information about a segment: an object with the records of a run, and its index at the end."""

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


def make_run(entries: Sequence[Entry], snapshots: Sequence[Snapshot] = (), blobs: Sequence[Blob] = ()) -> LogRun:
    """A run of entries and snapshots; a snapshot comes after the entry of its revision."""
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
    return LogRun(b"".join(parts), LogIndex(tuple(entry_rows), tuple(snapshot_rows), tuple(blobs)))


def join(runs: Iterable[LogRun]) -> LogRun:
    """Consecutive runs as one."""
    whole = LogRun()
    for run in runs:
        moved = run.index.moved(len(whole.records))
        index = LogIndex(
            whole.index.entries + moved.entries,
            whole.index.snapshots + moved.snapshots,
            whole.index.blobs + moved.blobs,
        )
        whole = LogRun(whole.records + run.records, index)
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


def make_segment(name: str, run: LogRun) -> tuple[Segment, bytes]:
    """A segment for a run, and the bytes of its object."""
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


def decode_index(data: bytes) -> LogIndex:
    """The index at the end of a segment."""
    try:
        return msgspec.msgpack.decode(data, type=LogIndex)
    except msgspec.DecodeError as error:
        raise BadData(f"the index of a segment cannot be read: {error}") from error


def count_merged(segments: Sequence[Segment], size: int) -> int:
    """The number of newest segments to merge with a new run of `size` bytes.

    Those of lower levels, and those of its own level if they make the next one. So levels never rise from the oldest to
    the newest, there are fewer than `SEGMENTS_PER_LEVEL` segments of each, and a byte is written again once per level.
    """
    merged = 0
    while True:
        level = _level(size)
        rest = [_level(segment.size) for segment in segments[: len(segments) - merged]]
        smaller = _count_last(rest, range(level))
        equal = _count_last(rest[: len(rest) - smaller], range(level, level + 1))
        count = smaller + (equal if equal >= SEGMENTS_PER_LEVEL - 1 and level < WHOLE else 0)
        if not count:
            return merged
        size += sum(segment.size for segment in segments[len(rest) - count : len(rest)])
        merged += count


def _count_last(levels: Sequence[int], wanted: Container[int]) -> int:
    return next((count for count, level in enumerate(reversed(levels)) if level not in wanted), len(levels))


def _level(size: int) -> int:
    """0 below eight tails (32 kB), 1 below sixty-four (256 kB), 2 below 2 MB, 3 below 16 MB, and then 4."""
    return min(WHOLE, max(0, (size // TAIL_BYTES).bit_length() - 1) // 3)


# Head objects.


class Root(msgspec.Struct, frozen=True, array_like=True, tag="session"):
    """A session: its head, its segments, and the newest part of its log; swapped as one small object."""

    head: Head
    life: str
    """Unique, also among sessions that had the same id before or after; part of the names of all its objects."""
    segments: tuple[Segment, ...]
    tail: LogRun
    doubt: bool = False
    """Set before a removal; any change clears it."""
    stamp: bytes = b""
    """New at each change, so that no content ever comes twice."""

    @property
    def folder(self) -> str:
        """The folder of its segments and blobs."""
        return data_folder(key_of(self.head.id), self.life)

    def changed(self, **fields: Any) -> Root:
        """The same with some fields changed, and without doubt."""
        return msgspec.structs.replace(self, **{"doubt": False, **fields})

    def with_head(self, **fields: Any) -> Root:
        """The same with some fields of the head changed."""
        return self.changed(head=msgspec.structs.replace(self.head, **fields))

    def gone(self) -> Gone:
        """Its replacement while it is removed."""
        head = self.head
        fork = fork_name(head.parent, head.id, self.life) if head.parent is not None else ""
        return Gone(key_of(head.id), self.life, recent_name(head, self.life), fork)


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """A session that is gone, while its objects are removed, this one last; or one that must never begin.

    Nothing takes its place until it is removed, and a bucket cannot remove an object on a condition. So only one
    process does it: the one that removed the session, or whose session must not begin. Much later, a sweep does.
    """

    key: str
    life: str
    recent: str = ""
    """The name of its note in the listing, if known."""
    fork: str = ""
    """The name of its note at its parent, if it has one."""
    stamp: bytes = b""


_head_decoder: msgspec.msgpack.Decoder[Root | Gone] = msgspec.msgpack.Decoder(Root | Gone)


def encode_head(content: Root | Gone) -> tuple[Any, bytes]:
    """A head object with a new stamp, and its bytes."""
    stamped = msgspec.structs.replace(content, stamp=secrets.token_bytes(9))
    return stamped, _encode(stamped)


def decode_head(data: bytes, name: str) -> Root | Gone:
    """A head object; `BadData` if it is damaged."""
    try:
        return _head_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BadData(f"{name} is damaged, or was written by a newer version of Stateroom: {error}") from error
