"""Serialized values in chunks, so a list that grew by an item is not written again.

The first chunk names the format of the serializer. A list or a dict in msgpack is a header followed by its items; it is
cut between them: the header is the second chunk, and the items follow, several small ones together. Every other value
is one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from zlib import crc32

import msgspec

MSGPACK = "msgpack"

HEADER_CHUNKS = 2
"""Chunks before the items of a list or a dict."""

MIN_CUT_BYTES = 256
"""The size from which a value is cut, in bytes."""

SMALL_ITEM_BYTES = 64
"""The size below which items share a chunk, in bytes."""

MAX_ITEMS_PER_CHUNK = 64
"""The most items per chunk."""

ITEMS_PER_CUT = 8
"""One in this number of small items ends a chunk, depending only on its content, so an insertion moves no other cut."""

MAX_COMPARED_PAIRS = 1_000_000
"""The most pairs of chunks to compare; with more, everything between equal ends counts as new."""

Splice = tuple[int, int, list[bytes]]
"""Start and stop of the replaced chunks, and the new ones."""

_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def cut(kind: str, data: bytes) -> list[bytes]:
    """A value as chunks."""
    if kind == MSGPACK and len(data) >= MIN_CUT_BYTES:
        size, count = _header(data)
        items = _items(data[size:], count) if size else None
        if items is not None:
            return [kind.encode(), data[:size], *_grouped(items)]
    return [kind.encode(), data]


def joined(chunks: Sequence[bytes]) -> tuple[str, bytes]:
    """The value of chunks, for the serializer."""
    return chunks[0].decode(), b"".join(chunks[1:])


def changes(old: Sequence[bytes], kind: str, data: bytes) -> list[Splice]:
    """The splices from the chunks of one value to those of another, last first, so none moves the next."""
    if len(old) > HEADER_CHUNKS and old[0].decode() == kind and (grown := _growth(old, data)) is not None:
        return grown
    return splices(old, cut(kind, data))


def _growth(old: Sequence[bytes], data: bytes) -> list[Splice] | None:
    """The splices if items were only appended, without reading other items."""
    size, count = _header(data)
    _, old_count = _header(old[1])
    if count < old_count:
        return None
    known = b"".join(old[HEADER_CHUNKS:])
    if not data.startswith(known, size):
        return None
    items = _items(data[size + len(known) :], count - old_count)
    if items is None:
        return None
    header: list[Splice] = [] if data[:size] == old[1] else [(1, HEADER_CHUNKS, [data[:size]])]
    added = list(_grouped(items))
    return [(len(old), len(old), added), *header] if added else header


def _items(data: bytes, count: int) -> Iterator[bytes] | None:
    """A number of values in a row; None if the data is something else."""
    try:
        return map(bytes, _split(b"\xdd" + count.to_bytes(4) + data))
    except msgspec.MsgspecError:  # msgpack of another serializer
        return None


def _header(data: bytes) -> tuple[int, int]:
    """The length of the header of a list or a dict, and its number of items; a dict has two per key."""
    first = int.from_bytes(data[:1])
    if 0x80 <= first <= 0x8F:
        return 1, 2 * (first & 0x0F)
    if 0x90 <= first <= 0x9F:
        return 1, first & 0x0F
    if 0xDC <= first <= 0xDF:
        size = 3 if first in (0xDC, 0xDE) else 5
        return size, int.from_bytes(data[1:size]) * (2 if first >= 0xDE else 1)
    return 0, 0


def _grouped(items: Iterable[bytes]) -> Iterator[bytes]:
    group: list[bytes] = []
    for item in items:
        if len(item) >= SMALL_ITEM_BYTES and not group:
            yield item
            continue
        group.append(item)
        if len(item) >= SMALL_ITEM_BYTES or len(group) == MAX_ITEMS_PER_CHUNK or crc32(item) % ITEMS_PER_CUT == 0:
            yield b"".join(group)
            group.clear()
    if group:
        yield b"".join(group)


def splices(old: Sequence[bytes], new: Sequence[bytes]) -> list[Splice]:
    """The splices from some chunks to others."""
    start = HEADER_CHUNKS  # the header has the number of items, so only it may differ
    first: list[Splice] = [
        (index, index + 1, [new[index]]) for index in reversed(range(HEADER_CHUNKS)) if old[index] != new[index]
    ]
    end, new_end = len(old), len(new)
    while start < min(end, new_end) and old[start] == new[start]:
        start += 1
    while min(end, new_end) > start and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    if start == end == new_end:
        return first
    if (end - start) * (new_end - start) in range(1, MAX_COMPARED_PAIRS):
        between = SequenceMatcher(None, old[start:end], new[start:new_end], autojunk=False).get_opcodes()
    else:
        between = [("replace", 0, end - start, 0, new_end - start)]
    replaced = [
        (start + from_, start + to, list(new[start + new_from : start + new_to]))
        for what, from_, to, new_from, new_to in between
        if what != "equal"
    ]
    return [*reversed(replaced), *first]
