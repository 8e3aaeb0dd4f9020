"""The keys of a store in Redis, and the form of heads and entries.

A session is one hash, `<prefix>{/<id>}`, so that a commit writes one key:

| field | |
|---|---|
| `head` | what never changes: id, environment, owner, parent and its revision, as msgpack |
| `created`, `revision`, `expires`, `closed`, `fence`, `holder`, `leased_until` | the rest of its `Head` |
| `phase`, `reward` | those of its `Head`, if it has them |
| `first` | the revision of its first entry |
| `base` | there are no entries up to it, except perhaps the first: reading begins here |
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

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from stateroom.store.records import DAMAGE, Entry, Head, damaged

HEAD = ("head", "created", "revision", "expires", "closed", "fence", "holder", "leased_until", "phase", "reward")
"""The fields of a `Head`."""

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


def text_or_none(text: str | None) -> str:
    """A text that may be missing, which is not the same as empty."""
    return "" if text is None else f"={text}"


def number_or_none(number: float | None) -> str:
    return "" if number is None else time(number)


def flag(whether: bool) -> str:
    return "1" if whether else "0"


def to_member(session: str, birth: str) -> bytes:
    """A session in the index: sorted by id, and unique among sessions that had the same id."""
    return f"{session}\0{birth}".encode()


def from_member(member: bytes) -> tuple[str, str]:
    """The id and the birth of a member; a damaged one gives an id that no session has."""
    text = member.decode("utf-8", "backslashreplace")
    return text[: -_BIRTH - 1], text[-_BIRTH:]


def pack_origin(head: Head) -> bytes:
    """The part of a head that never changes."""
    return _encode((head.id, head.environment, head.owner, head.parent, head.parent_revision))


def unpack_origin(origin: bytes) -> tuple[str, str | None]:
    """The environment and the parent; empty if it is damaged."""
    try:
        _, environment, _, parent, _ = _decode_origin(origin)
    except DAMAGE:
        return "", None
    return environment, parent


def unpack_head(session: str, fields: Sequence[Any]) -> Head:
    """A session's head, from its fields; `BadData` if they are damaged."""
    origin, created, revision, expires, closed, fence, holder, leased_until, phase, reward = fields
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
            None if phase is None else phase.decode(),
            None if reward is None else float(reward),
        )
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
