"""`durable=cold`: every session is in the cold tier, and the warm tier caches copies for fast reads.

A commit is acknowledged when the cold tier has it; then it is added to the copy. All that decides something, such as a
head or whether a call was made, comes from the cold tier. A load, entries and blobs come from a copy if it is of the
same session and has the revision: what was committed up to a revision never changes. If anything is wrong with a copy,
the cold tier is asked instead, and the next load makes a new one.

A copy stands alone. It begins at the snapshot that it was made from, as if it were forked there from nowhere, and its
lease, fence and expiry are its own: it expires when nothing was added to it for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from stateroom.errors import StateroomError, StoreError, StoreUnavailable
from stateroom.store.contract import Maintenance
from stateroom.store.records import Commit, Entry, Head, Loaded, Record, Size
from stateroom.store.tiered.tier import Tier
from stateroom.store.wrapper import WrappedMaintenance, WrappedStore

T = TypeVar("T")

DOWN_SECONDS = 1.0
"""Seconds for which the warm tier is not asked after it could not be reached."""


class DurableColdStore(WrappedStore):
    """The cold tier, with copies of its sessions in the warm tier."""

    def __init__(self, warm: Tier, cold: Tier, cool: float) -> None:
        super().__init__(cold)
        self.warm = warm
        self.cold = cold
        self.cool = cool
        self._latest = 0.0
        """The latest time that any caller has given."""
        self._paused_until = 0.0

    async def close(self) -> None:
        await self.warm.close()
        await self.cold.close()

    @property
    def maintenance(self) -> Maintenance:
        return DurableColdMaintenance(self)

    # Copies.

    async def attempt(self, work: Awaitable[T]) -> T | None:
        """Do something with a copy; None if that fails."""
        try:
            return await work
        except StoreUnavailable:
            self._paused_until = monotonic() + DOWN_SECONDS
        except StateroomError:
            pass
        return None

    @property
    def _paused(self) -> bool:
        return monotonic() < self._paused_until

    async def _make_copy(self, record: Record, begins: int) -> None:
        if self._paused:
            return
        head = record.head
        identity = (head.id, head.environment, head.owner, head.created)
        copy = replace(record, head=Head(*identity, self._latest + self.cool, head.revision, parent_revision=begins))
        try:
            await self.warm.put(copy, new=True)
        except StoreUnavailable:
            raise
        except StoreError:  # there is an older one
            await self.warm.delete(head.id)
            await self.warm.put(copy, new=True)

    async def _drop_copy(self, session: str) -> None:
        await self.attempt(self.warm.delete(session))

    # Writing.

    async def put(self, record: Record, *, new: bool = False) -> None:
        await self.cold.put(record, new=new)
        if new:
            self._latest = max(self._latest, record.head.created)
            await self.attempt(self._make_copy(record, record.head.parent_revision))
        else:
            await self._drop_copy(record.head.id)

    async def append(self, commit: Commit) -> None:
        await self.cold.append(commit)
        self._latest = max(self._latest, commit.entry.at)
        if not self._paused:
            expires = self._latest + self.cool
            await self.attempt(self.warm.append(replace(commit, expires=expires, fence=0, closes=False)))

    async def prune(self, session: str, below: int) -> int:
        gone = await self.cold.prune(session, below)
        await self._drop_copy(session)
        return gone

    async def delete(self, session: str) -> None:
        await self.cold.delete(session)
        await self._drop_copy(session)

    async def sweep(self, now: float) -> int:
        self._latest = max(self._latest, now)
        await self.attempt(self.warm.sweep(now))
        return await self.cold.sweep(now)

    # Reading.

    async def load(self, session: str, at: int | None = None) -> Loaded:
        if not self._paused:
            head, copy = await asyncio.gather(self.cold.head(session), self.attempt(self.warm.load(session, at)))
            until = head.revision if at is None else at
            if copy and _is_copy(copy.head, head) and copy.head.parent_revision <= until <= copy.head.revision:
                entries = [entry for entry in copy.entries if entry.revision <= until]
                if copy.snapshot is None or copy.snapshot.revision <= until:
                    return Loaded(head, copy.snapshot, entries)
        loaded = await self.cold.load(session, at)
        if at is None:
            head, snapshot = loaded.head, loaded.snapshot
            record = Record(head, loaded.entries, [snapshot] if snapshot else [], {})
            await self.attempt(self._make_copy(record, snapshot.revision if snapshot else head.parent_revision))
        return loaded

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        if not self._paused:
            head, copy = await asyncio.gather(self.cold.head(session), self.attempt(self.warm.head(session)))
            last = head.revision if until is None else min(until, head.revision)
            if copy and _is_copy(copy, head) and copy.parent_revision <= after and last <= copy.revision:
                entries = await self.attempt(self.warm.entries(session, after=after, until=last))
                if entries is not None:
                    return entries
        return await self.cold.entries(session, after=after, until=until)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        blobs: dict[str, bytes] = {}
        if digests is not None and not self._paused:
            _, copies = await asyncio.gather(self.cold.head(session), self.attempt(self.warm.blobs(session, digests)))
            blobs = copies or {}
            digests = [digest for digest in digests if digest not in blobs]
        return blobs if blobs and not digests else {**blobs, **await self.cold.blobs(session, digests)}

    async def adopt(self, session: str) -> Head:
        """Nothing to do: the warm tier has only copies."""
        return await self.cold.head(session)


class DurableColdMaintenance(WrappedMaintenance):
    """The maintenance of the cold tier, and of the copies."""

    store: DurableColdStore

    async def sizes(self) -> dict[str, Size]:
        """The sizes of the cold tier, and those of the copies under names of their own."""
        copies = await self.store.attempt(self.store.warm.maintenance.sizes()) or {}
        return {**await self._within.sizes(), **{f"{kind} of copies": size for kind, size in copies.items()}}

    async def vacuum(self) -> None:
        await self._within.vacuum()
        await self.store.attempt(self.store.warm.maintenance.vacuum())


def _is_copy(copy: Head, head: Head) -> bool:
    """Whether they are of the same session; an id may have been used before."""
    return (copy.created, copy.owner, copy.environment) == (head.created, head.owner, head.environment)
