"""The `Store` contract: where sessions live.

A session is a head and an append-only list of entries, with snapshots among them so that a load reads a bounded tail.
A store keeps order, identity and time; what the bodies mean is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Self

import msgspec

from stateroom.errors import BadData, SessionClosed, SessionExpired

Status = Literal["live", "closed", "expired"]

Blobs = Mapping[str, bytes]
"""Large values by the digest of their content: written once for a session, outside its log."""

NO_BLOBS: Blobs = MappingProxyType({})

DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, AttributeError)
"""What comes of reading stored data that is not what was written."""


def damaged(session: object, error: Exception) -> BadData:
    """The error about a session of which a store cannot read something."""
    return BadData(f"session {session!r} is damaged: {error}")


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a store knows of a session without reading its log."""

    id: str
    environment: str
    owner: str
    created: float
    expires: float
    revision: int
    """The newest revision. A fork starts at the revision of its parent that it forked from."""
    closed: bool = False
    parent: str | None = None
    parent_revision: int = 0
    fence: int = 0
    """Goes up with each new lease. Every commit names the fence it was made under, and is refused under another."""
    holder: str | None = None
    """The token of whoever has, or last had, the lease."""
    leased_until: float = 0.0

    def leased(self, now: float) -> bool:
        """Whether somebody has the lease at this time."""
        return self.holder is not None and self.leased_until > now

    def continues(self, earlier: Head) -> bool:
        """Whether this is the head of the same session, at the same revision or a later one."""
        return (
            (self.id, self.created, self.parent, self.parent_revision)
            == (earlier.id, earlier.created, earlier.parent, earlier.parent_revision)
        ) and self.revision >= earlier.revision

    def check_live(self, now: float) -> None:
        """Raise if nothing may be added to this session any more."""
        if self.closed:
            raise SessionClosed(self.id)
        if self.expires <= now:
            raise SessionExpired(self.id)

    def status(self, now: float) -> Status:
        """Whether something may be added to this session, and if not, why."""
        if self.closed:
            return "closed"
        return "expired" if self.expires <= now else "live"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One step of a session's history."""

    revision: int
    kind: str
    at: float
    body: bytes
    call_id: str | None = None


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A whole state, as it was at a revision."""

    revision: int
    body: bytes


class Commit(msgspec.Struct, frozen=True, gc=False):
    """An entry that is to be added to a session, and what is written with it."""

    session: str
    entry: Entry
    expires: float | None = None
    """The session's new expiry; None leaves it as it is."""
    fence: int = 0
    """The fence that the entry was made under."""
    snapshot: Snapshot | None = None
    blobs: Blobs = NO_BLOBS
    closes: bool = False
    """Whether the session is closed by it."""


class Loaded(msgspec.Struct, frozen=True):
    """A head, the newest snapshot at or before the revision asked for, and the entries from there up to it."""

    head: Head
    snapshot: Snapshot | None
    entries: list[Entry]


class Record(msgspec.Struct, frozen=True):
    """All that a store has of one session."""

    head: Head
    entries: list[Entry]
    snapshots: list[Snapshot]
    blobs: dict[str, bytes]


class Size(msgspec.Struct, frozen=True):
    """How much of something there is: rows (or keys, or objects), and their bytes."""

    rows: int
    bytes: int


class Store(ABC):
    """Keeps sessions. Every method is one atomic step; what was acknowledged is there for every later reader.

    A method that names a session raises `UnknownSession` if there is none with that id, and `BadData` if what is stored
    of it cannot be read; that is no other session's concern. What ends a worker of the store's own, such as a thread,
    fails all who wait and all who come with a `StoreError`: nobody waits for ever.
    """

    shared: bool = True
    """Whether other processes see what is in it."""

    remote: bool = False
    """Whether it is reached over a network, where the answer to a commit can be lost."""

    large: int = 64 * 1024
    """Values of so many bytes and more are to be kept as blobs, outside the log."""

    @classmethod
    @abstractmethod
    async def open(cls, url: str) -> Self:
        """Open the store at `url`, creating it if it is not there."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and let go of all resources; every later call but this raises `StoreUnavailable`."""

    @abstractmethod
    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        """Add a session. A fork's parent must exist and have reached the revision it forks from.

        Raises `StoreError` if the id is taken, `UnknownSession` or `UnknownRevision` for the parent, and
        `DuplicateCall` if two of the entries have one call id.
        """

    @abstractmethod
    async def append(self, commit: Commit) -> None:
        """Add an entry to a live session, with its snapshot and blobs, and renew its expiry if it says so: all or none.

        A blob that the session has already is not written again. Raises `SessionClosed` or `SessionExpired` (as of
        `entry.at`), else `DuplicateCall` if the entry's call id was used in this session before, else `Conflict` unless
        the session is at the revision before the entry's and at this fence.
        """

    @abstractmethod
    async def touch(self, session: str, *, now: float, expires: float) -> None:
        """Renew the expiry of a live session."""

    @abstractmethod
    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        """Give the session, live or not, to a holder until a time; the head as it is then.

        One who has, or was the last to have, the lease renews it. Anybody else gets it with a fence one higher, so that
        commits which others have under way are refused; `SessionLeased` if somebody has it at `now`.
        """

    @abstractmethod
    async def release(self, session: str, holder: str) -> None:
        """End the lease, if it is the holder's: `holder` is None then, and `leased_until` 0. The fence stays."""

    @abstractmethod
    async def head(self, session: str) -> Head:
        """The head of a session, live or not."""

    @abstractmethod
    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        """Heads, the newest first; `before` continues a listing after its last head.

        Damaged sessions are left out, and there are fewer than `limit` only at the end.
        """

    @abstractmethod
    async def children(self, session: str) -> list[Head]:
        """The heads of the sessions that were forked from this one, the oldest first."""

    @abstractmethod
    async def load(self, session: str, at: int | None = None) -> Loaded:
        """What is needed to know the state at a revision, the newest by default.

        Only the session's own snapshot and entries: before its first revision, a fork's reader goes on at the parent.
        """

    @abstractmethod
    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        """The session's own entries with a revision above `after`, up to and including `until`, in order."""

    @abstractmethod
    async def find_call(self, session: str, call_id: str) -> Entry | None:
        """The session's own entry with this call id."""

    @abstractmethod
    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        """Those of the session's own blobs that are asked for and there."""

    @abstractmethod
    async def sweep(self, now: float) -> int:
        """Remove the sessions that have expired, except those that a fork which stays still reads. Tells how many."""

    @abstractmethod
    async def delete(self, session: str) -> None:
        """Remove a session, with its entries and snapshots, at once.

        One that forks still read stays for them alone: it expires at once (its `expires` is 0), and is removed by the
        first sweep after the last of them is gone.
        """

    @abstractmethod
    async def count(self, now: float) -> int:
        """How many sessions are live: neither closed nor expired. Quick, however many there are."""

    # Care. These may take their time.

    @abstractmethod
    async def export(self, session: str) -> Record:
        """All of a session, as of one moment."""

    @abstractmethod
    async def restore(self, record: Record) -> None:
        """Put a session in as it is, its head with all it says, all or nothing.

        If the store has a session of this id, that must be an earlier moment of the same one: created at the same time,
        at the same revision or before. Then the rest is added, and the head becomes the record's; else `StoreError`.
        A fork's parent must be there, as for `create`.
        """

    @abstractmethod
    async def prune(self, session: str, below: int) -> int:
        """Forget the session's past before a revision at which it has a snapshot; tells how many entries have gone.

        Entries up to and including that revision go, except a session's first; so do the snapshots below it. All blobs
        stay: a fork may rely on them. Raises `UnknownRevision` if there is no snapshot at `below`. Whoever asks sees to
        it that no fork and no rewind needs what goes.
        """

    @abstractmethod
    async def size(self, session: str) -> Size:
        """How much the session's own entries, snapshots and blobs are; rows are its entries."""

    @abstractmethod
    async def sizes(self) -> dict[str, Size]:
        """How much there is in the whole store, by kind: `sessions`, `entries`, `snapshots`, `blobs`, and what else."""

    @abstractmethod
    async def orphans(self) -> list[str]:
        """What belongs to no session, forks whose parents are gone, and heads that are damaged; empty if all is well.

        Each in words, with the id of the session where there is one.
        """

    @abstractmethod
    async def vacuum(self) -> None:
        """Give back the space that what was removed has left behind, and remove what belongs to no session."""
