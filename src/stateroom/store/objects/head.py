"""What the head object of a session holds: everything that changes, in a few kilobytes that are swapped as one."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from stateroom.errors import BadData
from stateroom.store.contract import Head
from stateroom.store.objects.log import Run, Segment
from stateroom.store.objects.names import fork_name, key_of, recent_name


class Root(msgspec.Struct, frozen=True, array_like=True, tag="session"):
    """A session: its head, where its segments are, and the newest part of its log itself."""

    head: Head
    life: str
    """Another for each session, also for two that have one id one after the other; all of its objects bear it."""
    segments: tuple[Segment, ...]
    tail: Run
    doubt: bool = False
    """Somebody is about to remove it, unless it changes first."""
    stamp: bytes = b""
    """Another at each change, so that no content ever comes twice."""

    def changed(self, **fields: Any) -> Root:
        """The same with some fields changed, which ends any doubt."""
        return msgspec.structs.replace(self, **{"doubt": False, **fields})

    def with_head(self, **fields: Any) -> Root:
        """The same with some fields of the head changed."""
        return self.changed(head=msgspec.structs.replace(self.head, **fields))

    def gone(self) -> Gone:
        """What is left in its place while it is being removed."""
        head = self.head
        fork = fork_name(head.parent, head.id, self.life) if head.parent is not None else ""
        return Gone(key_of(head.id), self.life, recent_name(head, self.life), fork)


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """A session that is gone, and whose objects are being removed, this one last; or one that is never to begin.

    Nothing is put in its place until it is removed, and a bucket cannot remove an object on a condition. So only one
    does it: who removed the session, or whose session it is that was not to begin. Long after that, a sweep does.
    """

    key: str
    life: str
    recent: str = ""
    """Its name among the recent ones, if that is known."""
    fork: str = ""
    """Its name among the forks of its parent, if it has one."""
    stamp: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Root | Gone] = msgspec.msgpack.Decoder(Root | Gone)


def encode_head(content: Root | Gone) -> tuple[Any, bytes]:
    """A head object with a new stamp, and its bytes."""
    stamped = msgspec.structs.replace(content, stamp=secrets.token_bytes(9))
    return stamped, _encode(stamped)


def decode_head(data: bytes, name: str) -> Root | Gone:
    """A head object; `BadData` if it is damaged."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BadData(
            f"{name} is damaged: it is not the head of a session, or one of a newer version: {error}"
        ) from error
