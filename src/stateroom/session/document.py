"""Documents: all that a session is at one revision, as plain data, and the bytes of its snapshots."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from stateroom.errors import BadData
from stateroom.session.log import PATCHED, LogEntry, Weight, progress_after
from stateroom.session.progress import Progress
from stateroom.state import Large, Patch, References, State, apply, decode, encode, encode_json, encode_patch, schema_of
from stateroom.store import Head, Loaded

NOWHERE = Head("", "", "", 0.0, 0.0, 0)


class Start(msgspec.Struct, frozen=True):
    """What a session's state follows from that is stored elsewhere: a world, which is a session of its own."""

    world: str
    """The session's id."""
    size: int
    """How many bytes a snapshot of it has."""
    changes: Patch = []
    """What has changed since."""


class Document(NamedTuple):
    """All that a session is at one revision, as plain data."""

    state: Any
    """None while only the start is known that it follows from."""
    progress: Progress
    weight: Weight = Weight()
    digests: frozenset[str] = frozenset()
    """Of large values that are known to be stored for the session, or for one that it was forked from."""
    head: Head = NOWHERE
    """The session's, when it was read."""
    last_kind: str | None = None
    """The kind of the last entry that was read; None if the snapshot says all."""
    version: int = 1
    """Of the schema of the state."""
    fingerprint: str | None = None
    """Of that schema; None if the writer knew of none."""
    start: Start | None = None
    """What the state follows from, while it is not known itself."""


class _Logged(msgspec.Struct):
    """What a snapshot says of the log before it."""

    log: int = 0


_decode_logged = msgspec.msgpack.Decoder(_Logged).decode


def write_document(
    state: State, progress: Progress, references: References, start: Start | None = None, *, log: int = 0
) -> bytes:
    """The body of a snapshot. With a start that the state follows from, only that is written of it.

    `log` is how many bytes were stored for the session before.
    """
    schema = schema_of(type(state))
    parts: dict[str, Any] = {
        "moment": msgspec.Raw(encode_json(progress.plain())),
        "schema": (schema.version, schema.fingerprint),
    }
    if log:
        parts["log"] = log
    if start is None:
        parts["state"] = msgspec.Raw(encode(state, references))
    else:
        parts["start"] = (start.world, start.size, msgspec.Raw(encode_patch(start.changes, references)))
    return msgspec.msgpack.encode(parts)


def read_document(body: bytes, large: list[Large] | None = None) -> Document:
    """What the body of a snapshot says. Its large values are missing; which these are is added to `large`."""
    data = decode(body, (), [] if large is None else large)
    try:
        version, fingerprint = data.get("schema", (1, None))
        progress = Progress.of_plain(data["moment"])
        if "start" not in data:
            return Document(data["state"], progress, version=version, fingerprint=fingerprint)
        world, size, changes = data["start"]
        start = Start(world, size, [tuple(operation) for operation in changes])
        return Document(None, progress, version=version, fingerprint=fingerprint, start=start)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadData(f"a stored snapshot cannot be read: {error!r}") from error


def world_is_gone(session: str, world: str) -> BadData:
    """Why a session cannot be read."""
    return BadData(f"session {session!r} is damaged: it began in {world!r}, which is gone")


def logged_bytes(loaded: Loaded) -> int:
    """How many bytes the session's own snapshots and entries have, without large values."""
    size = sum(len(entry.body) for entry in loaded.entries)
    if loaded.snapshot is None:
        return size
    try:
        return size + len(loaded.snapshot.body) + _decode_logged(loaded.snapshot.body).log
    except msgspec.DecodeError as error:
        raise BadData(f"a stored snapshot cannot be read: {error}") from error


def changed(document: Document, changes: list[LogEntry]) -> Document:
    progress = document.progress
    for entry in changes:
        if entry.kind in PATCHED and document.start is not None:
            document.start.changes.extend(entry.patch)
        elif entry.kind in PATCHED:
            apply(document.state, entry.patch)
        progress = progress_after(progress, entry.kind, entry.call_id, entry.facts, entry.revision)
    return document._replace(progress=progress)
