"""The keys of a store in Redis, and the form of heads and entries.

A session is one hash, `<prefix>{/<id>}`, so that a commit writes one key:

| field | |
|---|---|
| `head` | what never changes: id, environment, owner, parent and its revision, as msgpack |
| `created`, `revision`, `expires` and so on | each other field of its `Head` that is not None, as text |
| `first` | the revision of its first entry |
| `base` | the revision up to which the entries were pruned, except perhaps the first: reading begins here |
| `birth` | a unique token, also among sessions that had the same id before or after |
| `held` | of a fork: until when its ancestors live at least, in the server's milliseconds; see `lifetime` |
| `placed`, `indexed` | how often the index got this session's expiry, and the last value; see `lifetime` |
| `e:<revision>` | an entry, as msgpack |
| `c:<call id>` | the revision of the entry with this call id |
| `s:<revision>` | the body of a snapshot |
| `b:<digest>` | a blob |

Beside it are `…:snapshots`, the revisions that have a snapshot, in order, and `…:forks`, the members (id and birth) of
its forks. The id is percent-encoded, and in braces: all keys of a session are in one slot of a cluster. The / before it
is there because an empty pair of braces would not count. The hash has a time to live; a sweep removes the other two.

Times are text as Python writes them, because Lua returns numbers with only fourteen digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from stateroom.store.records import DAMAGE, Entry, Head, damaged, field_types

ORIGIN = ("id", "environment", "owner", "parent", "parent_revision")
"""The fields of a `Head` that are kept together, since they never change."""
CHANGING = tuple(name for name in Head.__struct_fields__ if name not in ORIGIN)
HEAD = ("head", *CHANGING)
"""The fields of the hash with all of a `Head`."""

_BIRTH = 16
"""Length of a birth."""

_encode = msgspec.msgpack.Encoder().encode
_Origin = tuple[str, str, str, str | None, int]
_decode_origin = msgspec.msgpack.Decoder(_Origin).decode
_decode_entry = msgspec.msgpack.Decoder(tuple[str, float, bytes, str | None, int]).decode


class SessionKeys(NamedTuple):
    """The keys of one session."""

    session: str

    @property
    def snapshots(self) -> str:
        return f"{self.session}:snapshots"

    @property
    def forks(self) -> str:
        return f"{self.session}:forks"

    def void(self, birth: str) -> str:
        """Exists while a birth must not be created any more; see `lifetime`."""
        return f"{self.session}:void:{birth}"


@lru_cache(maxsize=10_000)
def keys_of(prefix: str, session: str) -> SessionKeys:
    """The keys of a session."""
    return SessionKeys(f"{prefix}{{/{quote(session, '')}}}")


def time(at: float) -> str:
    """A time as text that reads back as exactly the same time."""
    return repr(float(at))


def flag(whether: bool) -> str:
    return "1" if whether else "0"


_TYPES = field_types(Head)
_WRITE: dict[type, Callable[[Any], str]] = {str: str, int: str, float: time, bool: flag}
_READ: dict[type, Callable[[bytes], Any]] = {str: bytes.decode, int: int, float: float, bool: lambda text: text == b"1"}
_READERS = [(name, _READ[_TYPES[name]]) for name in CHANGING]
_MAY_BE_NONE = {field.name for field in msgspec.structs.fields(Head) if field.default is None}


def optional(name: str, value: object) -> str:
    """A field of a head, as scripts take it: None is empty, and all else begins with a =."""
    return "" if value is None else f"={_WRITE[_TYPES[name]](value)}"


def to_member(session: str, birth: str) -> bytes:
    """A session in the index: sorted by id, and unique among sessions that had the same id."""
    return f"{session}\0{birth}".encode()


def from_member(member: bytes) -> tuple[str, str]:
    """The id and the birth of a member; a damaged one gives an id that no session has."""
    text = member.decode("utf-8", "backslashreplace")
    return text[: -_BIRTH - 1], text[-_BIRTH:]


def pack_origin(head: Head) -> bytes:
    """The part of a head that never changes."""
    return _encode([getattr(head, name) for name in ORIGIN])


def unpack_origin(origin: bytes) -> tuple[str, str | None]:
    """The environment and the parent; empty if it is damaged."""
    try:
        _, environment, _, parent, _ = _decode_origin(origin)
    except DAMAGE:
        return "", None
    return environment, parent


def unpack_head(session: str, fields: Sequence[Any]) -> Head:
    """A session's head, from its fields; `BadData` if they are damaged."""
    origin, *texts = fields
    try:
        values: dict[str, Any] = dict(zip(ORIGIN, _decode_origin(origin), strict=True))
        for (name, read), text in zip(_READERS, texts, strict=True):
            values[name] = None if text is None and name in _MAY_BE_NONE else read(text)
        return Head(**values)
    except DAMAGE as error:
        raise damaged(session, error) from error


def pack_entry(entry: Entry) -> bytes:
    """An entry, with the parts that differ at its end: Lua's hash of long strings looks at little else."""
    return _encode((entry.kind, entry.at, entry.body, entry.call_id, entry.revision))


def unpack_entry(session: str, packed: bytes) -> Entry:
    """An entry of a session; `BadData` if it is damaged."""
    try:
        kind, at, body, call_id, revision = _decode_entry(packed)
    except DAMAGE as error:
        raise damaged(session, error) from error
    return Entry(revision, kind, at, body, call_id)
