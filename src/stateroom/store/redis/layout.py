"""What lies where in a Redis server.

A session is one hash, `<prefix>{/<id>}`, so that a commit is one write to one key:

| field | |
|---|---|
| `head` | what never changes: id, environment, owner, parent and its revision, as msgpack |
| `created`, `revision`, `expires`, `closed`, `fence`, `holder`, `leased_until` | the rest of its `Head` |
| `first` | the revision of its first entry |
| `base` | below it lie no entries, except perhaps the first: where reading begins |
| `birth` | a token that no other session has, nor one of the same id before or after |
| `placed`, `indexed` | how often the index was told of this session's expiry, and what it was told; see `index` |
| `e:<revision>` | an entry, as msgpack |
| `c:<call id>` | the revision of the entry with this call id |
| `s:<revision>` | the body of a snapshot |
| `b:<digest>` | a blob |

Beside it lie `…:snapshots`, the revisions that have a snapshot, in order, and `…:forks`, the members (id and birth) of
the sessions that were forked from it. The id is percent-encoded, and stands in braces: all keys of a session are in one
slot of a cluster. The / before it is there because an empty pair of braces would not count.

Times are text as Python writes them, since numbers in Lua come back with fourteen digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from stateroom.store.contract import DAMAGE, Entry, Head, damaged

HEAD = ("head", "created", "revision", "expires", "closed", "fence", "holder", "leased_until")
"""The fields that make a `Head`."""

_BIRTH = 16
"""How long a birth is."""

_encode = msgspec.msgpack.Encoder().encode
_Origin = tuple[str, str, str, str | None, int]
_decode_origin = msgspec.msgpack.Decoder(_Origin).decode
_decode_entry = msgspec.msgpack.Decoder(tuple[str, float, bytes, str | None, int]).decode


class Keys(NamedTuple):
    """The keys of one session."""

    session: str

    @property
    def snapshots(self) -> str:
        return f"{self.session}:snapshots"

    @property
    def forks(self) -> str:
        return f"{self.session}:forks"

    def void(self, birth: str) -> str:
        """There while a birth must not come about any more; see `index`."""
        return f"{self.session}:void:{birth}"


@lru_cache(maxsize=10_000)
def session_key(prefix: str, session: str) -> str:
    """The key of a session's hash."""
    return f"{prefix}{{/{quote(session, '')}}}"


def time(at: float) -> str:
    """A time as text that is the very same time when it is read."""
    return repr(float(at))


def flag(whether: bool) -> str:
    return "1" if whether else "0"


def to_member(session: str, birth: str) -> bytes:
    """A session in an index: in the order of ids, and no other session of that id."""
    return f"{session}\0{birth}".encode()


def from_member(member: bytes) -> tuple[str, str]:
    """The id and the birth of a member; of one that is damaged, an id that no session has."""
    text = member.decode("utf-8", "backslashreplace")
    return text[: -_BIRTH - 1], text[-_BIRTH:]


def pack_origin(head: Head) -> bytes:
    """What never changes of a session."""
    return _encode((head.id, head.environment, head.owner, head.parent, head.parent_revision))


def unpack_origin(origin: bytes) -> tuple[str, str | None]:
    """The environment and the parent; none of one that is damaged."""
    try:
        _, environment, _, parent, _ = _decode_origin(origin)
    except DAMAGE:
        return "", None
    return environment, parent


def unpack_head(session: str, fields: Sequence[Any]) -> Head:
    """A session's head, from its fields; `BadData` if they are damaged."""
    origin, created, revision, expires, closed, fence, holder, leased_until = fields
    try:
        identity, environment, owner, parent, parent_revision = _decode_origin(origin)
        return Head(
            identity,
            environment,
            owner,
            float(created),
            float(expires),
            int(revision),
            closed == b"1",
            parent,
            parent_revision,
            int(fence),
            None if holder is None else holder.decode(),
            float(leased_until),
        )
    except DAMAGE as error:
        raise damaged(session, error) from error


def pack_entry(entry: Entry) -> bytes:
    """An entry, with what differs from one to the next at its end: of long strings Lua's hash looks at little else."""
    return _encode((entry.kind, entry.at, entry.body, entry.call_id, entry.revision))


def unpack_entry(session: str, packed: bytes) -> Entry:
    """An entry of a session; `BadData` if it is damaged."""
    try:
        kind, at, body, call_id, revision = _decode_entry(packed)
    except DAMAGE as error:
        raise damaged(session, error) from error
    return Entry(revision, kind, at, body, call_id)
