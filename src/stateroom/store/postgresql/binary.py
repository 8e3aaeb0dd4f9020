"""The binary form of values and rows.

In binary form nothing is quoted or escaped, and a column of a whole batch is one parameter. Text is kept as its UTF-8
bytes. So any text can be an id, also one with a NUL or half a surrogate pair, whatever the database's encoding; and ids
compare by code points, whatever its collation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct, error
from typing import Any

from stateroom.errors import StoreError
from stateroom.store.head_filter import Order
from stateroom.store.records import Entry, Head, Snapshot, field_types
from stateroom.store.tables import RowReader

Value = bytes | None

READER = RowReader(lambda kept: kept.decode("utf-8", "surrogatepass"))

# PostgreSQL's numbers of its types.
BYTES, TEXT, WHOLE, REAL, TRUTH = 17, 25, 20, 701, 16

_pack_length = Struct("!i").pack
_pack_whole = Struct("!q").pack
_pack_real = Struct("!d").pack
_pack_array = Struct("!iiIii").pack
_TRUTHS = (b"\x00", b"\x01")
_NO_ITEM = _pack_length(-1)


def text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def text_or_none(value: str | None) -> Value:
    return None if value is None else text(value)


def whole(value: int) -> bytes:
    try:
        return _pack_whole(value)
    except error:
        raise StoreError(f"PostgreSQL cannot hold a number as large as {value}") from None


def real(value: float) -> bytes:
    return _pack_real(value)


def real_or_none(value: float | None) -> Value:
    return None if value is None else real(value)


def text_or_real(value: str | float) -> bytes:
    return text(value) if isinstance(value, str) else real(value)


def truth(value: bool) -> bytes:
    return _TRUTHS[value]


def array(of: int, values: Iterable[Value]) -> bytes:
    """An array of one type; its one dimension counts from 1, and its items begin with their length."""
    items = [_NO_ITEM if value is None else _pack_length(len(value)) + value for value in values]
    return b"".join((_pack_array(1, 1, of, len(items), 1), *items))


# Rows.

_ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    str: (BYTES, text),
    bytes: (BYTES, bytes),
    int: (WHOLE, whole),
    float: (REAL, real),
    bool: (TRUTH, truth),
}
_FIELDS = {kind: [(name, *_ENCODERS[of]) for name, of in field_types(kind).items()] for kind in (Head, Entry, Snapshot)}


def head_values(head: Head) -> list[Value]:
    """A head, as the values of its columns."""
    return [_encoded(encode, getattr(head, name)) for name, _, encode in _FIELDS[Head]]


def columns(kind: type[Entry | Snapshot], parts: Sequence[Entry | Snapshot]) -> list[Value]:
    """Entries or snapshots, as an array for each of their columns."""
    return [array(of, [_encoded(encode, getattr(part, name)) for part in parts]) for name, of, encode in _FIELDS[kind]]


def blob_columns(blobs: Iterable[tuple[str, bytes]]) -> list[Value]:
    """Blobs, as an array of digests and one of bodies."""
    rows = list(blobs)
    return [array(BYTES, [text(digest) for digest, _ in rows]), array(BYTES, [body for _, body in rows])]


def place_of_row(row: Sequence[Any], order: Order) -> tuple[bytes, ...]:
    """The place of a row of a head in a list; the row may be damaged."""
    age = real(row[3]), row[0]
    return (real(row[-1]), *age) if order == "reward" else age


def _encoded(encode: Callable[[Any], bytes], value: Any) -> Value:
    return None if value is None else encode(value)
