"""State as bytes: msgpack that keeps every supported type exact and names no class.

Types that msgpack lacks travel as numbered extensions. A long text of a call's input is stored once: where it appears
again in the call's patch, a reference to it is written.

A large value, a text or bytes, is stored by itself, once, under the digest of its content. Where one stands in a state
or in a log, its digest and size are written. Data that was decoded holds a `Large` in its place, until the contents are
put in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from math import inf
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
_LARGE_TEXT, _LARGE_BYTES = 13, 14
"""Their payload is the digest and, in `_SIZE_BYTES`, the size."""

_DIGEST_BYTES, _SIZE_BYTES = 16, 8
_NATIVE = frozenset({float, bool, type(None), msgspec.Raw})
"""Types whose values are written as they are; what is raw has been encoded before."""

_SIMPLE = frozenset({int, float, bool, type(None)})
"""Types whose values msgpack writes unchanged, except integers beyond 64 bits."""

_KEYS = frozenset({str, int})
"""Types of steps that are written as they are, in almost any path."""

_LONGEST = re.compile(rb"\xdb(?:\0[^\0]|[^\0\x80-\xbf])")
"""How a text of 2**16 bytes or more begins in msgpack, and what is never within a text."""

_pack = msgspec.msgpack.Encoder().encode
_pack_in_order = msgspec.msgpack.Encoder(order="sorted").encode
_json = msgspec.json.Encoder().encode

_NO_PARTS = _pack([])


class Large(msgspec.Struct, frozen=True, gc=False):
    """Stands for a large value."""

    digest: str
    """Of its content, by which that is stored."""
    size: int
    """Of its content, in bytes."""
    is_text: bool

    def value(self, content: bytes) -> str | bytes:
        """The value itself."""
        return content.decode("utf-8", "surrogatepass") if self.is_text else content


def digest_of(content: bytes) -> str:
    """The name under which a content is stored."""
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _content_of(value: str | bytes) -> bytes:
    """The stored bytes of a large value. A text may contain half a surrogate pair, although that is not Unicode."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


class References(msgspec.Struct):
    """The values that are replaced by references, because a reader finds them elsewhere.

    A text of at least `least` characters, or bytes of at least `least`, are large. The keys of a dict and the members
    of a set are always written out: those are looked up by what they are.
    """

    least: float = inf
    texts: dict[str, int] = {}
    """Long texts that are written as numbers."""
    blobs: dict[str, bytes] = {}
    """The contents of the large values so far, by their digests."""
    size: int = 0
    """How many bytes were not written out so far; a value counts as often as it stands somewhere."""

    def number(self, texts: Iterable[str]) -> None:
        """From now on, write each of these long texts as its number."""
        self.texts = {text: number for number, text in enumerate(texts)}

    def refer(self, value: str | bytes) -> Ext | None:
        """The reference to write for a text or bytes; None to write the value itself."""
        number = self.texts.get(value) if isinstance(value, str) else None
        if number is None and len(value) < self.least:
            return None
        content = _content_of(value)
        self.size += len(content)
        if number is not None:
            return Ext(_TEXT, b"%d" % number)
        digest = digest_of(content)
        self.blobs[digest] = content
        payload = bytes.fromhex(digest) + len(content).to_bytes(_SIZE_BYTES)
        return Ext(_LARGE_TEXT if isinstance(value, str) else _LARGE_BYTES, payload)


_NO_REFERENCES = References()


def encode(value: Any, references: References = _NO_REFERENCES) -> bytes:
    """The bytes of a state, or of any part of one."""
    return _pack(_wire(value, references))


def encode_json(value: Any, references: References = _NO_REFERENCES) -> bytes:
    """The same bytes as `encode` gives, for data that is made of JSON's types only."""
    try:
        data = _pack(value)
        if len(data) <= references.least or not _may_have_large(data, references.least):
            return data
        return _pack(_without_large(value, references))
    except (OverflowError, ValueError):  # a large int, half a surrogate pair
        return encode(value, references)


def _may_have_large(data: bytes, least: float) -> bool:
    """Whether a text in packed data may be large: it takes much longer to look at each of them."""
    return least < 2**16 or _LONGEST.search(data) is not None


def _without_large(value: Any, references: References) -> Any:
    kind = type(value)
    if kind is str:
        return value if len(value) < references.least else references.refer(value)
    if kind is dict:
        return {key: _without_large(part, references) for key, part in value.items()}
    if kind is list:
        return [_without_large(part, references) for part in value]
    return value


def to_json(value: Any) -> bytes:
    """JSON data as the text that clients and models read."""
    try:
        return _json(value)
    except (OverflowError, ValueError):  # a large int, half a surrogate pair
        text = json.dumps(msgspec.to_builtins(value))
        plain = json.loads(text, parse_constant=lambda _: None)  # not a number is null, as above
        return json.dumps(plain, separators=(",", ":")).encode()


def digest_in_order(data: Any) -> bytes:
    """A digest of plain data, in which the order of keys and members does not count."""
    try:
        body = _pack_in_order(data)
    except (TypeError, ValueError, OverflowError):  # keys without an order, or values that msgpack lacks
        body = encode(_in_order(data))
    return blake2b(body, digest_size=16).digest()


def _in_order(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _in_order(data[key]) for key in sorted(data, key=encode)}
    return [_in_order(part) for part in data] if isinstance(data, list) else data


def encode_patch(patch: Iterable[Sequence[Any]], references: References = _NO_REFERENCES) -> bytes:
    """The bytes of a patch."""
    simple = True
    for step in patch:
        if type(step[-1]) not in _SIMPLE or not _KEYS.issuperset(map(type, step[1])):
            simple = False
            break
    try:
        return _pack(patch if simple else [_wire_step(step, references) for step in patch])
    except (OverflowError, ValueError):  # a large int, half a surrogate pair, in what looked simple
        return _pack([_wire_step(step, references) for step in patch])


def _wire_step(step: Sequence[Any], references: References) -> list[Any]:
    kind, path, *needs = step
    return [kind, [_wire(key, _NO_REFERENCES) for key in path], *[_wire(need, references) for need in needs]]


def decode(data: bytes, texts: Sequence[str] = (), large: list[Large] | None = None) -> Any:
    """The plain data in `data`: models are dicts and enums their values, all else is as it was encoded.

    A large value is missing: a `Large` stands in its place, and is added to `large`. Without that it is bad data.
    """
    try:
        return _Extensions(texts, large).decode(data)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadData(f"stored data cannot be decoded: {why_not_decoded(data, error)}") from error


class _Extensions:
    """Reads the extensions in packed data; a function that refers to itself would be garbage after each use."""

    __slots__ = ("_large", "_texts")

    def __init__(self, texts: Sequence[str], large: list[Large] | None) -> None:
        self._texts, self._large = texts, large

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data, ext_hook=self)

    def __call__(self, code: int, payload: memoryview) -> Any:
        raw = bytes(payload)
        if code == _TEXT:
            return self._texts[int(raw)]
        if code in (_LARGE_TEXT, _LARGE_BYTES):
            if self._large is None:
                raise ValueError("a large value is missing")
            self._large.append(_reference(code, raw))
            return self._large[-1]
        return _READERS[code](raw, self.decode)


def why_not_decoded(data: bytes, error: Exception) -> str:
    """The problem with some data, given the decoder's error."""
    if bytes(memoryview(data)[:1]) == b"\xc1":  # msgpack never has it; stores put it before what they have transformed
        return "it is compressed or encrypted; add compress= or keys= to the store's URL"
    return str(error)


def _reference(code: int, raw: bytes) -> Large:
    if len(raw) != _DIGEST_BYTES + _SIZE_BYTES:
        raise ValueError("a reference to a large value has another length")
    return Large(raw[:_DIGEST_BYTES].hex(), int.from_bytes(raw[_DIGEST_BYTES:]), code == _LARGE_TEXT)


def long_texts(value: Any) -> list[str]:
    """The long texts within plain data, in a fixed order."""
    if isinstance(value, str):
        return [value] if len(value) >= LONG_TEXT else []
    texts: list[str] = []
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(part, str | dict | list) and (not isinstance(part, str) or len(part) >= LONG_TEXT):
            texts += long_texts(part)
    return texts


def _wire(value: Any, references: References) -> Any:
    kind = type(value)
    if kind is str:
        if len(value) >= references.least or (references.texts and len(value) >= LONG_TEXT):
            reference = references.refer(value)
            if reference is not None:
                return reference
        return value if value.isascii() or _is_unicode(value) else Ext(_ODD_TEXT, _content_of(value))
    if kind in _NATIVE:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else Ext(_BIGINT, b"%d" % value)
    if kind in _WRITER_OF:
        code, write = _WRITER_OF[kind]
        return Ext(code, write(value, references))
    if kind is not list and kind is not dict and isinstance(value, BaseModel):  # which takes long to find out
        fields = value.__dict__
        short = min(references.least, LONG_TEXT)
        return {
            name: part
            if ((of := type(part := fields[name])) is str and len(part) < short and part.isascii()) or of in _NATIVE
            else _wire(part, references)  # few get here
            for name in kind.__pydantic_fields__
        }
    if isinstance(value, Enum):
        return _wire(value.value, references)
    if isinstance(value, list):
        return [_wire(part, references) for part in value]
    if isinstance(value, dict):
        pairs = [(_wire(key, _NO_REFERENCES), _wire(part, references)) for key, part in value.items()]
        # An extension cannot be a key of msgpack's own maps.
        return Ext(_PAIRS, _pack(pairs)) if any(type(key) is Ext for key, _ in pairs) else dict(pairs)
    if kind is bytes:
        return (references.refer(value) if len(value) >= references.least else None) or value
    return _wire_rare(value, references)


def _wire_rare(value: Any, references: References) -> Any:
    """What `_wire` makes of an instance of a subclass that has no writer of its own."""
    for supported, code, write in _WRITERS:
        if isinstance(value, supported):
            return Ext(code, write(value, references))
    for native, plain in _PLAIN.items():  # a subclass stands for its plain value
        if isinstance(value, native):
            return _wire(plain(value), references)
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in the JSON text "\\ud83d"
        return False
    return True


def _parts(value: Any, references: References) -> bytes:
    return _pack([_wire(part, references) for part in value]) if value else _NO_PARTS


def _members(value: Any, references: References) -> bytes:
    least, references.least = references.least, inf
    try:  # in an order that is the same in every process
        return _pack(sorted((_wire(part, references) for part in value), key=_pack))
    finally:
        references.least = least


def _text(value: Any, _: References) -> bytes:
    return str(value).encode()


def _iso(value: Any, _: References) -> bytes:
    text: str = value.isoformat()
    zone = getattr(getattr(value, "tzinfo", None), "key", None)  # of a ZoneInfo
    fold = ";1" if getattr(value, "fold", 0) else ""
    return (f"{text}[{zone}]{fold}" if zone else f"{text}{fold}").encode()


def _duration(value: timedelta, _: References) -> bytes:
    return _pack((value.days, value.seconds, value.microseconds))


def _datetime(raw: bytes, _: Any) -> datetime:
    text, _, fold = raw.decode().partition(";")
    text, _, zone = text.rstrip("]").partition("[")
    value = datetime.fromisoformat(text)
    if fold:
        value = value.replace(fold=1)
    try:
        return value.replace(tzinfo=ZoneInfo(zone)) if zone else value
    except ZoneInfoNotFoundError:  # this host does not know the zone; the instant is still right
        return value


_PLAIN: dict[type, Any] = {str: str.__str__, int: int, float: float, bytes: bytes}

# In this order: a datetime is a date too.
_WRITERS: tuple[tuple[type, int, Any], ...] = (
    (datetime, _DATETIME, _iso),
    (date, _DATE, _iso),
    (timedelta, _TIMEDELTA, _duration),
    (UUID, _UUID, _text),
    (Decimal, _DECIMAL, _text),
    (set, _SET, _members),
    (frozenset, _FROZENSET, _members),
    (tuple, _TUPLE, _parts),
)

_WRITER_OF = {kind: (code, write) for kind, code, write in _WRITERS}

_READERS: dict[int, Any] = {
    _DATETIME: _datetime,
    _DATE: lambda raw, _: date.fromisoformat(raw.decode()),
    _TIMEDELTA: lambda raw, _: timedelta(*msgspec.msgpack.decode(raw)),
    _UUID: lambda raw, _: UUID(raw.decode()),
    _DECIMAL: lambda raw, _: Decimal(raw.decode()),
    _SET: lambda raw, decoded: set(decoded(raw)),
    _FROZENSET: lambda raw, decoded: frozenset(decoded(raw)),
    _TUPLE: lambda raw, decoded: tuple(decoded(raw)),
    _BIGINT: lambda raw, _: int(raw),
    _PAIRS: lambda raw, decoded: dict(decoded(raw)),
    _ODD_TEXT: lambda raw, _: raw.decode("utf-8", "surrogatepass"),
}


# Large values in plain data.

_HOLDERS = frozenset({Large, dict, list, tuple})
"""Types of which a value can be missing, or have something missing in it."""


def large_in(value: Any) -> Iterator[Large]:
    """The missing values in plain data. Sets and the keys of a dict never have any."""
    kind = type(value)
    if kind is Large:
        yield value
    elif kind is dict:
        for part in value.values():
            if type(part) in _HOLDERS:
                yield from large_in(part)
    elif kind is list or kind is tuple:
        for part in value:
            if type(part) in _HOLDERS:
                yield from large_in(part)


def put_in(value: Any, values: Mapping[Large, Any]) -> Any:
    """The data with the values of what is missing, which are put in where it can be changed."""
    kind = type(value)
    if kind is Large:
        return values[value]
    if kind is tuple:
        return tuple([put_in(part, values) for part in value])
    if kind is dict:
        for key, part in value.items():
            if type(part) in _HOLDERS:
                value[key] = put_in(part, values)
    elif kind is list:
        for index, part in enumerate(value):
            if type(part) in _HOLDERS:
                value[index] = put_in(part, values)
    return value
