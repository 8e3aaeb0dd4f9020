"""The `Store` contract: where sessions live.

A session is a head and an append-only list of entries, with snapshots among them so that a load reads a bounded tail.
A store keeps order, identity and time; it does not look into the bodies.

A new store writes the fourteen abstract methods of `Store`. Everything else has a default that is derived from them; a
store overrides a default that its backend can answer faster.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Self

from stateroom.errors import BadData, UnknownSession
from stateroom.store.head_filter import ALL_SESSIONS, HEADS_PER_PAGE, HeadFilter, Order
from stateroom.store.records import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, lost_fork


class Store(ABC):
    """Stores sessions. Every method is one atomic step, and every later reader sees an acknowledged write.

    A method that names a session raises `UnknownSession` if it does not exist, and `BadData` if it cannot be read;
    other sessions are not affected. If a worker of the store dies, such as a thread, all pending and later calls fail
    with a `StoreError`: no caller waits forever.
    """

    shared: bool = True
    """Whether other processes see the store's sessions."""

    remote: bool = False
    """Whether the store is behind a network, where the answer to a commit can be lost."""

    large: int = 64 * 1024
    """Values of at least this many bytes are stored as blobs, outside the log."""

    # What a store writes.

    @classmethod
    @abstractmethod
    async def open(cls, url: str) -> Self:
        """Open the store at `url`; create it if it does not exist."""

    @abstractmethod
    async def close(self) -> None:
        """Finish pending calls and release all resources; later calls, except `close`, raise `StoreUnavailable`."""

    @abstractmethod
    async def put(self, record: Record, *, new: bool = False) -> None:
        """Write a whole session, with its head as given: all or nothing.

        If the id exists, the stored session must be an earlier version of the same one (`Head.continues`): the missing
        parts are added, and the record's head replaces the stored one. Otherwise raises `OutdatedRecord`, or
        `StoreError` if the session must be `new`. A fork's parent must exist and have reached the revision that it
        forks from (`UnknownSession`, `UnknownRevision`). Two new entries with the same call id raise `DuplicateCall`.
        """

    @abstractmethod
    async def append(self, commit: Commit) -> None:
        """Append an entry to a live session, with its snapshot and blobs: all or nothing. `Head.after` is the new head.

        A blob that the session already has is not written again. Raises `SessionClosed` or `SessionExpired` (as of
        `entry.at`), else `DuplicateCall` if the session has an entry with this call id, else `Conflict` unless the
        session is at the revision before the entry's and has this fence.
        """

    @abstractmethod
    async def touch(self, session: str, *, now: float, expires: float) -> None:
        """Renew the expiry of a live session."""

    @abstractmethod
    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        """Lease the session, live or not, to a holder until a time; returns the new head.

        The current or last holder renews its lease. Another holder increments the fence, so pending commits of others
        are refused. Raises `SessionLeased` if another holder has the lease at `now`.
        """

    @abstractmethod
    async def release(self, session: str, holder: str) -> None:
        """End the lease if `holder` has it: `holder` becomes None and `leased_until` 0. The fence stays."""

    @abstractmethod
    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        """Return a page of the heads that match a filter, in an order; `after` is the last head of the previous page.

        Damaged sessions are left out. A page shorter than `limit` is the last one. `page_of` makes a page from all
        heads; `filter_newest` is for a store that can only list its heads from the newest.
        """

    @abstractmethod
    async def load(self, session: str, at: int | None = None) -> Loaded:
        """Load the snapshot and the entries that restore the state at a revision, by default the newest.

        They are the session's own; for a revision before a fork's first, the caller loads the parent.
        """

    @abstractmethod
    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        """Return the session's own entries with a revision above `after`, up to and including `until`, in order."""

    @abstractmethod
    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        """Return the session's own blobs with these digests, if they exist; by default all blobs."""

    @abstractmethod
    async def prune(self, session: str, below: int) -> int:
        """Remove the session's past before a revision with a snapshot; returns the number of removed entries.

        Removes the entries up to and including that revision, except the session's first, and the snapshots below it.
        All blobs stay, because a fork may need them. Raises `UnknownRevision` if `below` has no snapshot. The caller
        ensures that no fork or rewind needs what is removed.
        """

    @abstractmethod
    async def sweep(self, now: float) -> int:
        """Remove expired sessions, except those that a remaining fork reads; returns their number."""

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Remove a session at once.

        A session that forks read stays for them: it expires at once (its `expires` is 0), and the first sweep after the
        last fork is gone removes it.
        """

    # What has a default.

    async def create(
        self, head: Head, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None, blobs: Blobs = NO_BLOBS
    ) -> None:
        """Add a new session; see `put`."""
        await self.put(Record(head, list(entries), [snapshot] if snapshot else [], dict(blobs)), new=True)

    async def head(self, session: str) -> Head:
        """Return the head of a session, live or not."""
        return (await self.load(session, 0)).head

    async def children(self, session: str) -> list[Head]:
        """Return the heads of the session's forks, oldest first."""
        await self.head(session)
        forks = [head async for page in self.pages() for head in page if head.parent == session]
        return forks[::-1]

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        """Return the session's own entry with this call id."""
        return next((entry for entry in await self.entries(session) if entry.call_id == call_id), None)

    async def size(self, session: str) -> Size:
        """Return the number of the session's own entries, and the bytes of its entries, snapshots and blobs."""
        return (await self.maintenance.export(session)).size()

    async def count(self, now: float) -> int:
        """Return the number of live sessions. A server calls this often: override it if there can be many sessions."""
        return sum([head.status(now) == "live" async for page in self.pages() for head in page])

    async def pages(self, wanted: HeadFilter = ALL_SESSIONS, order: Order = "newest") -> AsyncIterator[list[Head]]:
        """Iterate over all heads that match a filter, in an order, page by page."""
        page = await self.heads(wanted, order=order, limit=HEADS_PER_PAGE)
        while page:
            yield page
            page = await self.heads(wanted, order=order, after=page[-1], limit=HEADS_PER_PAGE)

    @property
    def maintenance(self) -> Maintenance:
        """The store's maintenance operations, which may take long."""
        return Maintenance(self)


class Maintenance:
    """Maintenance operations of a store. The defaults go through all sessions, one by one, which may take long."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def export(self, session: str) -> Record:
        """Export a whole session, as of one moment."""
        store = self.store
        while True:  # until nothing was committed meanwhile
            head = await store.head(session)
            entries = await store.entries(session)
            snapshots: list[Snapshot] = []
            at = head.revision
            while at >= 0 and (snapshot := (await store.load(session, at)).snapshot):
                snapshots.append(snapshot)
                at = snapshot.revision - 1
            blobs = await store.blobs(session)
            if await store.head(session) == head:
                return Record(head, entries, snapshots[::-1], blobs)

    async def sizes(self) -> dict[str, Size]:
        """Return the size of the whole store by kind: `sessions`, `entries`, `snapshots`, `blobs`, and others."""
        sizes = dict.fromkeys(("sessions", "entries", "snapshots", "blobs"), Size(0, 0))
        async for page in self.store.pages():
            for head in page:
                with suppress(UnknownSession, BadData):  # removed meanwhile, or damaged
                    record = await self.export(head.id)
                    parts = {
                        "sessions": [f"{head.id}{head.environment}{head.owner}".encode()],
                        "entries": [entry.body for entry in record.entries],
                        "snapshots": [snapshot.body for snapshot in record.snapshots],
                        "blobs": [*record.blobs.values()],
                    }
                    for kind, bodies in parts.items():
                        sizes[kind] += Size(len(bodies), sum(map(len, bodies)))
                await asyncio.sleep(0)  # a store in memory never waits, and others would
        return sizes

    async def orphans(self) -> list[str]:
        """Describe data without a session, forks without their parents, and damaged heads, with the id if known.

        The list is empty if the store is intact.
        """
        heads = {head.id: head async for page in self.store.pages() for head in page}
        suspects = [head for head in heads.values() if head.parent is not None and head.parent not in heads]
        return [
            lost_fork(head.id, str(head.parent))
            for head in suspects
            if await self._has(head.id) and not await self._has(str(head.parent))  # it may have changed meanwhile
        ]

    async def _has(self, session: str) -> bool:
        try:
            await self.store.head(session)
        except UnknownSession:
            return False
        return True

    async def vacuum(self) -> None:
        """Remove data without a session, and free unused space."""
        await self.store.heads(limit=1)  # nothing to do, but a closed store refuses
