"""`durable=cold`: every session is in the cold tier, and the warm tier has copies that are quick to read.

A commit is acknowledged when the cold tier has it; then it is added to the copy. Whatever decides something, a head or
whether a call was made, is asked of the cold tier. A load, entries and blobs come from a copy if that is of the same
session and has the revision asked for: what was committed up to a revision never changes. Whatever goes wrong with a
copy, the cold tier is asked instead, and the next load makes a new one.

A copy stands alone. It begins at the snapshot it was made from, as though it were forked there from nowhere, and its
lease, fence and expiry are its own: it expires when nothing was added to it for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from time import monotonic
from typing import Self, TypeVar

from msgspec.structs import replace

from stateroom.errors import StateroomError, StoreError, StoreUnavailable, UnknownStore
from stateroom.store import Commit
from stateroom.store.contract import NO_BLOBS, Blobs, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.tiered.tier import Tier

T = TypeVar("T")

PAUSE = 1.0
"""For how many seconds the warm tier is left alone after it could not be reached."""


class CachingStore(Store):
    """Sessions in the cold tier, and copies of them in the warm tier."""

    def __init__(self, warm: Tier, cold: Tier, cool: float) -> None:
        self.warm = warm
        self.cold = cold
        self.cool = cool
        self.shared = cold.shared
        self._latest = 0.0
        """The latest time that anybody has told."""
        self._left_alone_until = 0.0

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} has no URL: it is what tiered:// opens")

    async def close(self) -> None:
        await self.warm.close()
        await self.cold.close()

    # Copies.

    async def _try(self, work: Awaitable[T]) -> T | None:
        """Do something with a copy; None if that cannot be done."""
        try:
            return await work
        except StoreUnavailable:
            self._left_alone_until = monotonic() + PAUSE
        except StateroomError:
            pass
        return None

    @property
    def _left_alone(self) -> bool:
        return monotonic() < self._left_alone_until

    async def _make_copy(
        self, head: Head, begins: int, entries: Sequence[Entry], snapshot: Snapshot | None, blobs: Blobs = NO_BLOBS
    ) -> None:
        if self._left_alone:
            return
        copy = Head(
            head.id,
            head.environment,
            head.owner,
            head.created,
            self._latest + self.cool,
            head.revision,
            parent_revision=begins,
        )
        try:
            await self.warm.create(copy, entries, snapshot, blobs)
        except StoreUnavailable:
            raise
        except StoreError:  # there is an older one
            await self.warm.delete(head.id)
            await self.warm.create(copy, entries, snapshot, blobs)

    async def _drop_copy(self, session: str) -> None:
        await self._try(self.warm.delete(session))

    def _tell_time(self, time: float) -> None:
        self._latest = max(self._latest, time)

    # Writing.

    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        await self.cold.create(head, entries, snapshot, blobs)
        self._tell_time(head.created)
        await self._try(self._make_copy(head, head.parent_revision, entries, snapshot, blobs))

    async def append(self, commit: Commit) -> None:
        await self.cold.append(commit)
        self._tell_time(commit.entry.at)
        if not self._left_alone:
            lives = self._latest + self.cool
            await self._try(self.warm.append(replace(commit, expires=lives, fence=0, closes=False)))

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        await self.cold.touch(session, now=now, expires=expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return await self.cold.lease(session, holder, now=now, until=until)

    async def release(self, session: str, holder: str) -> None:
        await self.cold.release(session, holder)

    # Reading.

    async def head(self, session: str) -> Head:
        return await self.cold.head(session)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await self.cold.heads(environment=environment, before=before, limit=limit)

    async def children(self, session: str) -> list[Head]:
        return await self.cold.children(session)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        if not self._left_alone:
            head, copy = await asyncio.gather(self.cold.head(session), self._try(self.warm.load(session, at)))
            until = head.revision if at is None else at
            if copy and _is_copy(copy.head, head) and copy.head.parent_revision <= until <= copy.head.revision:
                entries = [entry for entry in copy.entries if entry.revision <= until]
                if copy.snapshot is None or copy.snapshot.revision <= until:
                    return Loaded(head, copy.snapshot, entries)
        loaded = await self.cold.load(session, at)
        if at is None:
            begins = loaded.snapshot.revision if loaded.snapshot else loaded.head.parent_revision
            await self._try(self._make_copy(loaded.head, begins, loaded.entries, loaded.snapshot))
        return loaded

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        if not self._left_alone:
            head, copy = await asyncio.gather(self.cold.head(session), self._try(self.warm.head(session)))
            last = head.revision if until is None else min(until, head.revision)
            if copy and _is_copy(copy, head) and copy.parent_revision <= after and last <= copy.revision:
                found = await self._try(self.warm.entries(session, after=after, until=last))
                if found is not None:
                    return found
        return await self.cold.entries(session, after=after, until=until)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self.cold.find_call(session, call_id)

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if not self._left_alone:
            _, copies = await asyncio.gather(self.cold.head(session), self._try(self.warm.blobs(session, digests)))
            found = copies or {}
        missing = [digest for digest in digests if digest not in found]
        return {**found, **await self.cold.blobs(session, missing)} if missing or not found else found

    async def count(self, now: float) -> int:
        return await self.cold.count(now)

    # The end.

    async def delete(self, session: str) -> None:
        await self.cold.delete(session)
        await self._drop_copy(session)

    async def sweep(self, now: float) -> int:
        self._tell_time(now)
        await self._try(self.warm.sweep(now))
        return await self.cold.sweep(now)

    # Care.

    async def export(self, session: str) -> Record:
        return await self.cold.export(session)

    async def restore(self, record: Record) -> None:
        await self.cold.restore(record)
        await self._drop_copy(record.head.id)

    async def prune(self, session: str, below: int) -> int:
        gone = await self.cold.prune(session, below)
        await self._drop_copy(session)
        return gone

    async def size(self, session: str) -> Size:
        return await self.cold.size(session)

    async def sizes(self) -> dict[str, Size]:
        """What the cold tier has, and of the copies under names of their own."""
        copies = await self._try(self.warm.sizes()) or {}
        return {**await self.cold.sizes(), **{f"{kind} of copies": size for kind, size in copies.items()}}

    async def orphans(self) -> list[str]:
        return await self.cold.orphans()

    async def vacuum(self) -> None:
        await self.cold.vacuum()
        await self._try(self.warm.vacuum())

    async def adopt(self, session: str) -> Head:
        """Nothing to do: the warm tier has but copies."""
        return await self.cold.head(session)


def _is_copy(copy: Head, head: Head) -> bool:
    """Whether they are of the same session; an id may have been used before."""
    return (copy.created, copy.owner, copy.environment) == (head.created, head.owner, head.environment)
