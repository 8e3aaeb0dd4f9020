"""Values in PostgreSQL's binary form: nothing is quoted or escaped, and a column of a whole batch is one parameter.

Text is kept as the bytes of its UTF-8. So any text can be an id, also one with a NUL or half a surrogate pair, whatever
the database's encoding; and ids compare by code points, whatever its collation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct, error
from typing import Any

from stateroom.errors import BadData, StoreError
from stateroom.store.contract import DAMAGE, Entry, Head, damaged

Value = bytes | None

HEAD = (
    "id, environment, owner, created, expires, revision, closed, parent, parent_revision, fence, holder, leased_until"
)
ENTRY = "revision, kind, at, body, call_id"

# The numbers that PostgreSQL has for its types.
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


def to_text(kept: bytes) -> str:
    return kept.decode("utf-8", "surrogatepass")


def shown(kept: bytes) -> str:
    """A text that may be damaged, for people."""
    return kept.decode("utf-8", "backslashreplace")


def whole(value: int) -> bytes:
    try:
        return _pack_whole(value)
    except error:
        raise _too_large(value) from None


def real(value: float) -> bytes:
    return _pack_real(value)


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


def head_values(head: Head) -> list[Value]:
    """A head, as the columns of `HEAD`."""
    return [
        text(head.id),
        text(head.environment),
        text(head.owner),
        real(head.created),
        real(head.expires),
        whole(head.revision),
        truth(head.closed),
        text_or_none(head.parent),
        whole(head.parent_revision),
        whole(head.fence),
        text_or_none(head.holder),
        real(head.leased_until),
    ]


def to_head(row: Sequence[Any]) -> Head:
    identity, environment, owner, created, expires, revision, closed, parent, start, fence, holder, until = row
    try:
        return Head(
            to_text(identity),
            to_text(environment),
            to_text(owner),
            created,
            expires,
            revision,
            closed,
            None if parent is None else to_text(parent),
            start,
            fence,
            None if holder is None else to_text(holder),
            until,
        )
    except DAMAGE as error:
        raise damaged(shown(identity), error) from error


def readable(rows: Iterable[Sequence[Any]]) -> Iterator[Head]:
    """The heads that are not damaged; `orphans` tells of the others."""
    for row in rows:
        with suppress(BadData):
            yield to_head(row)


def entry_columns(entries: Sequence[Entry]) -> list[Value]:
    """Entries, as an array for each column of `ENTRY`."""
    return [
        array(WHOLE, [whole_item(entry.revision) for entry in entries]),
        array(BYTES, [text_item(entry.kind) for entry in entries]),
        array(REAL, [real_item(entry.at) for entry in entries]),
        array(BYTES, [bytes_item(entry.body) for entry in entries]),
        array(BYTES, [text_item(entry.call_id) for entry in entries]),
    ]


def to_entry(session: str, row: Sequence[Any]) -> Entry:
    revision, kind, at, body, call_id = row
    try:
        return Entry(revision, to_text(kind), at, body, None if call_id is None else to_text(call_id))
    except DAMAGE as error:
        raise damaged(session, error) from error
