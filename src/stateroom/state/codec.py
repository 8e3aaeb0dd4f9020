"""State as bytes: msgpack that keeps every supported type exact and names no class.

Types that msgpack lacks travel as numbered extensions. A long text of a call's input is stored once: where it appears
again in the call's patch, a reference to it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.msgpack import Ext
from pydantic import BaseModel

from stateroom.errors import BadData

LONG_TEXT = 64
"""Texts of at least this many characters are worth a reference."""

_DATETIME, _DATE, _TIMEDELTA, _UUID, _DECIMAL, _SET, _FROZENSET, _TUPLE, _BIGINT, _TEXT, _PAIRS, _ODD_TEXT = range(
    1, 13
)
_NATIVE = frozenset({str, float, bool, bytes, type(None)})

_SIMPLE = frozenset({int, float, bool, type(None)})
"""Types of which any value, or almost any, is as it stands."""

_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


def encode(value: Any, texts: Mapping[str, int] | None = None) -> bytes:
    """The bytes of a state, or of any part of one; `texts` numbers the texts that may be written as references."""
    return _pack(_wire(value, texts or {}))


def encode_json(value: Any) -> bytes:
    """The same bytes as `encode` gives, for data that is made of JSON's types only."""
    try:
        return _pack(value)
    except (OverflowError, ValueError):  # a large int, half a surrogate pair
        return encode(value)


def to_json(value: Any) -> bytes:
    """JSON data as the text that clients and models read."""
    try:
        return _json(value)
    except (OverflowError, ValueError):  # a large int, half a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def encode_patch(patch: Iterable[Sequence[Any]], texts: Mapping[str, int]) -> bytes:
    """The bytes of a patch, in which a text that `texts` numbers is written as a reference."""
    try:
        return _pack([step if type(step[-1]) in _SIMPLE else _wire_step(step, texts) for step in patch])
    except (OverflowError, ValueError):  # a large int, an odd key
        wired = [_wire_step(step, texts) for step in patch]
        return _pack([[kind, [_wire(key, {}) for key in path], *needs] for kind, path, *needs in wired])


def _wire_step(step: Sequence[Any], texts: Mapping[str, int]) -> list[Any]:
    return [*step[:2], *[_wire(need, texts) for need in step[2:]]]


def decode(data: bytes, texts: Sequence[str] = ()) -> Any:
    """The plain data in `data`: models are dicts and enums their values, all else is as it was encoded."""

    def extension(code: int, payload: memoryview) -> Any:
        raw = bytes(payload)
        if code == _TEXT:
            return texts[int(raw)]
        return _READERS[code](raw, texts)

    try:
        return msgspec.msgpack.decode(data, ext_hook=extension)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadData(f"stored data cannot be decoded: {error}") from error


def long_texts(value: Any) -> Iterator[str]:
    """The long texts within plain data, in a fixed order."""
    if isinstance(value, str):
        if len(value) >= LONG_TEXT:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from long_texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from long_texts(part)


def _wire(value: Any, texts: Mapping[str, int]) -> Any:
    kind = type(value)
    if kind is str:
        if texts and len(value) >= LONG_TEXT and value in texts:
            return Ext(_TEXT, b"%d" % texts[value])
        return (
            value if value.isascii() or _is_unicode(value) else Ext(_ODD_TEXT, value.encode("utf-8", "surrogatepass"))
        )
    if kind in _NATIVE:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else Ext(_BIGINT, b"%d" % value)
    if isinstance(value, BaseModel):
        fields = value.__dict__
        return {name: _wire(fields[name], texts) for name in kind.__pydantic_fields__}
    if isinstance(value, Enum):
        return _wire(value.value, texts)
    if isinstance(value, list):
        return [_wire(part, texts) for part in value]
    if isinstance(value, dict):
        pairs = [(_wire(key, {}), _wire(part, texts)) for key, part in value.items()]
        # An extension cannot be a key of msgpack's own maps.
        return Ext(_PAIRS, _pack(pairs)) if any(type(key) is Ext for key, _ in pairs) else dict(pairs)
    for supported, code, write in _WRITERS:
        if isinstance(value, supported):
            return Ext(code, write(value, texts))
    for native, plain in _PLAIN.items():  # a subclass stands for its plain value
        if isinstance(value, native):
            return _wire(plain(value), texts)
    raise TypeError(f"a value of type {kind.__name__} cannot be stored")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in the JSON text "\\ud83d"
        return False
    return True


def _parts(value: Any, texts: Mapping[str, int]) -> bytes:
    return _pack([_wire(part, texts) for part in value])


def _text(value: Any, _: Mapping[str, int]) -> bytes:
    return str(value).encode()


def _iso(value: Any, _: Mapping[str, int]) -> bytes:
    text: str = value.isoformat()
    zone = getattr(getattr(value, "tzinfo", None), "key", None)  # of a ZoneInfo
    return f"{text}[{zone}]".encode() if zone else text.encode()


def _duration(value: timedelta, _: Mapping[str, int]) -> bytes:
    return _pack((value.days, value.seconds, value.microseconds))


def _datetime(raw: bytes, _: Sequence[str]) -> datetime:
    text, _, zone = raw.decode().rstrip("]").partition("[")
    value = datetime.fromisoformat(text)
    if not zone:
        return value
    try:
        local = value.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # this host does not know the zone; the instant is still right
        return value
    return local if local.utcoffset() == value.utcoffset() else local.replace(fold=1)


_PLAIN: dict[type, Any] = {str: str.__str__, int: int, float: float, bytes: bytes}

# In this order: a datetime is a date too.
_WRITERS: tuple[tuple[type, int, Any], ...] = (
    (datetime, _DATETIME, _iso),
    (date, _DATE, _iso),
    (timedelta, _TIMEDELTA, _duration),
    (UUID, _UUID, _text),
    (Decimal, _DECIMAL, _text),
    (set, _SET, _parts),
    (frozenset, _FROZENSET, _parts),
    (tuple, _TUPLE, _parts),
)

_READERS: dict[int, Any] = {
    _DATETIME: _datetime,
    _DATE: lambda raw, _: date.fromisoformat(raw.decode()),
    _TIMEDELTA: lambda raw, _: timedelta(*msgspec.msgpack.decode(raw)),
    _UUID: lambda raw, _: UUID(raw.decode()),
    _DECIMAL: lambda raw, _: Decimal(raw.decode()),
    _SET: lambda raw, texts: set(decode(raw, texts)),
    _FROZENSET: lambda raw, texts: frozenset(decode(raw, texts)),
    _TUPLE: lambda raw, texts: tuple(decode(raw, texts)),
    _BIGINT: lambda raw, _: int(raw),
    _PAIRS: lambda raw, texts: dict(decode(raw, texts)),
    _ODD_TEXT: lambda raw, _: raw.decode("utf-8", "surrogatepass"),
}
