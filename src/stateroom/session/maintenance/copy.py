"""Copying sessions from one store to another, and verifying the copies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from msgspec.structs import replace

from stateroom.errors import StoreError, UnknownSession
from stateroom.session.log import read_entry
from stateroom.session.maintenance.check import whole_after
from stateroom.session.shared import is_world
from stateroom.store import Entry, Record, Snapshot, Store


class Copied(NamedTuple):
    """The copied data of a session."""

    revision: int
    entries: int
    bytes: int


class Copier:
    """Copies sessions, each as of one moment, and compares the copy with the original.

    A session that already exists in the target is brought up to date, so you can copy again; if it has diverged there,
    it is not changed. Leases are not copied. The parents of a session, and the world that it starts from, are copied
    too.
    """

    def __init__(self, source: Store, target: Store) -> None:
        self.source = source
        self.target = target
        self.copied: dict[str, Copied] = {}
        """The copied data, by session."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def copy(self, session: str) -> None:
        """Copy a session, after its ancestors, unless they were copied before.

        Raises `OutdatedRecord` if the target has another session with that id or a later version of this one, and
        `StoreError` if the copy differs.
        """
        todo: list[tuple[str, int]] = []
        head = await self.source.head(session)
        needed = 0
        while not self._has(head.id, needed):
            todo.append((head.id, needed))
            if head.parent is None:
                break
            needed = head.parent_revision
            head = await self.source.head(head.parent)
        for each, revision in reversed(todo):
            await self._copy(each, revision)

    def _has(self, session: str, revision: int) -> bool:
        return session in self.copied and self.copied[session].revision >= revision

    async def _copy(self, session: str, needed: int) -> None:
        async with self._locks.setdefault(session, asyncio.Lock()):
            if self._has(session, needed):  # by now: another fork of it was quicker
                return
            record = await self.source.maintenance.export(session)
            if is_world(session):
                record = await self._as_made_there(record)
            if world := _world_of(record):
                with suppress(UnknownSession):  # it is gone: the session does without it, or is damaged here as there
                    await self.copy(world)
            record = replace(record, head=replace(record.head, holder=None, leased_until=0.0))
            await self._ensure_one_way(record)
            await self.target.put(record)
            arrived = await self.target.maintenance.export(session)
            if _has_gap(arrived):  # the original was pruned, and the copy had not come so far
                await self.target.prune(session, whole_after(record))
                arrived = await self.target.maintenance.export(session)
            wrong = _difference(record, arrived)
            if wrong:
                raise StoreError(f"the copy of session {session!r} differs from the original: {wrong}")
            bodies = [entry.body for entry in record.entries] + [snapshot.body for snapshot in record.snapshots]
            size = sum(map(len, bodies)) + sum(map(len, record.blobs.values()))
            self.copied[session] = Copied(record.head.revision, len(record.entries), size)

    async def _as_made_there(self, world: Record) -> Record:
        """A world as the target has it, if it was made there too: its content is the same, but not its time."""
        try:
            there = await self.target.head(world.head.id)
        except UnknownSession:
            return world
        head = replace(there, expires=max(there.expires, world.head.expires))
        return replace(world, head=head, entries=await self.target.entries(there.id))

    async def _ensure_one_way(self, record: Record) -> None:
        """Raise if the target has an earlier moment of the session, from which that went on in another way there."""
        session = record.head.id
        try:
            there = await self.target.head(session)
        except UnknownSession:
            return
        if record.head.continues(there) and there.revision > whole_after(record):
            last = await self.target.entries(session, after=there.revision - 1)
            if last != [entry for entry in record.entries if entry.revision == there.revision]:
                raise StoreError(f"session {session!r} has diverged in the target, and was not copied")


def _world_of(record: Record) -> str | None:
    """The world that a session starts from, if it does."""
    first = record.entries[0] if record.entries else None
    world: str | None = read_entry(first).facts.get("world") if first and first.kind == "seed" else None
    return world


def _has_gap(record: Record) -> bool:
    start = whole_after(record)
    return sum(entry.revision > start for entry in record.entries) < record.head.revision - start


def _difference(sent: Record, arrived: Record) -> str | None:
    """In what a copy differs; it may have more of the past than the original, which may have been pruned since."""
    if arrived.head != sent.head:
        return "its head differs"
    parts: tuple[tuple[str, dict[Any, Any], dict[Any, Any]], ...] = (
        ("entries", _by_revision(sent.entries), _by_revision(arrived.entries)),
        ("snapshots", _by_revision(sent.snapshots), _by_revision(arrived.snapshots)),
        ("large values", sent.blobs, arrived.blobs),
    )
    for what, some, others in parts:
        different = [name for name, part in some.items() if others.get(name) != part]
        if different:
            return f"{len(different)} of its {len(some)} {what} differ or are missing"
    return None


def _by_revision(parts: Sequence[Entry | Snapshot]) -> dict[int, Entry | Snapshot]:
    return {part.revision: part for part in parts}
