"""Test data for the suite: heads, entries, blobs and sessions, with defaults."""

from __future__ import annotations

import hashlib
from typing import Any

from stateroom.store import Commit, Entry, Head, Record, Snapshot, Store

NOW = 1_000.0
LATER = 2_000.0
MUCH_LATER = 3_000.0


def head(name: str = "room", **fields: Any) -> Head:
    """A head with defaults for all fields."""
    given: dict[str, Any] = {"environment": "env", "owner": "owner", "created": NOW, "expires": LATER, "revision": 0}
    return Head(name, **{**given, **fields})


def entry(revision: int, call_id: str | None = None, *, at: float = NOW, body: bytes | None = None) -> Entry:
    """An entry whose body names its revision."""
    return Entry(revision, "call", at, b"body %d" % revision if body is None else body, call_id)


def blobs(*bodies: bytes) -> dict[str, bytes]:
    """Blobs by their digests."""
    return {hashlib.sha256(body).hexdigest(): body for body in bodies}


async def session(store: Store, name: str = "room", *, revision: int = 1, **fields: Any) -> list[Entry]:
    """Create a session with entries up to a revision; a fork's begin after its parent's revision."""
    created = head(name, revision=revision, **fields)
    entries = [entry(number) for number in range(created.parent_revision + 1, revision + 1)]
    await store.create(created, entries)
    return entries


async def fork(store: Store, name: str, parent: str, at: int, **fields: Any) -> list[Entry]:
    """Fork a session; without a `revision` the fork has no entries of its own."""
    return await session(store, name, **{"revision": at, **fields}, parent=parent, parent_revision=at)


async def long_session(store: Store) -> Record:
    """A session with something of everything; all of it."""
    both = blobs(b"first", b"second")
    first, second = ({digest: body} for digest, body in both.items())
    entries = [entry(number, f"call {number}", at=NOW + number) for number in range(1, 9)]
    snapshots = {number: Snapshot(number, b"state %d" % number) for number in (1, 4, 6)}
    await store.create(head(revision=1, fence=3), entries[:1], snapshots[1], first)
    for each in entries[1:]:
        parts: dict[str, Any] = {
            "snapshot": snapshots.get(each.revision),
            "blobs": second if each.revision == 5 else {},
        }
        await store.append(Commit("room", each, expires=LATER + each.revision, fence=3, **parts))
    await store.lease("room", "me", now=NOW, until=LATER)
    leased = head(revision=8, expires=LATER + 8, fence=4, holder="me", leased_until=LATER)
    return Record(leased, entries, [*snapshots.values()], both)
