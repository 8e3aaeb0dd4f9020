"""The `Store` contract: where sessions live.

A session is a head and an append-only list of entries, with snapshots among them so that a load reads a bounded tail.
A store keeps order, identity and time; what the bodies mean is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import msgspec

from stateroom.errors import SessionClosed, SessionExpired

Status = Literal["live", "closed", "expired"]


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


class Loaded(msgspec.Struct, frozen=True):
    """A head, the newest snapshot at or before the revision asked for, and the entries from there up to it."""

    head: Head
    snapshot: Snapshot | None
    entries: list[Entry]


class Store(ABC):
    """Keeps sessions. Every method is one atomic step; what was acknowledged is there for every later reader.

    A method that names a session raises `UnknownSession` if there is none with that id.
    """

    shared: ClassVar[bool] = True
    """Whether other processes see what is in it."""

    @classmethod
    @abstractmethod
    async def open(cls, url: str) -> Self:
        """Open the store at `url`, creating it if it is not there."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and let go of all resources; every later call but this raises `StoreUnavailable`."""

    @abstractmethod
    async def create(self, head: Head, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        """Add a session. A fork's parent must exist and have reached the revision it forks from.

        Raises `StoreError` if the id is taken, `UnknownSession` or `UnknownRevision` for the parent, and
        `DuplicateCall` if two of the entries have one call id.
        """

    @abstractmethod
    async def append(
        self,
        session: str,
        entry: Entry,
        *,
        expires: float | None,
        snapshot: Snapshot | None = None,
        closes: bool = False,
    ) -> None:
        """Add an entry to a live session, renew its expiry unless that is None, and add the snapshot, all or nothing.

        Raises `Conflict` unless the session is at the revision before the entry's, `DuplicateCall` if the entry's call
        id was used in this session before, and `SessionClosed` or `SessionExpired` (as of `entry.at`).
        """

    @abstractmethod
    async def touch(self, session: str, *, now: float, expires: float) -> None:
        """Renew the expiry of a live session."""

    @abstractmethod
    async def head(self, session: str) -> Head:
        """The head of a session, live or not."""

    @abstractmethod
    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        """Heads, the newest first; `before` continues a listing after its last head."""

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
