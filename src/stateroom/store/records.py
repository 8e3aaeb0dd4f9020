"""Records of a session in a store: its head, entries, snapshots and blobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from stateroom.errors import (
    BadData,
    Conflict,
    DuplicateCall,
    ForeignStore,
    OutdatedRecord,
    SessionClosed,
    SessionExpired,
    SessionLeased,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)

Status = Literal["live", "closed", "expired"]

Blobs = Mapping[str, bytes]
"""Large values by the digest of their content, stored once per session outside its log."""

NO_BLOBS: Blobs = MappingProxyType({})

DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, AttributeError)
"""Errors raised by decoding stored data that is not what was written."""


def damaged(session: object, error: Exception) -> BadData:
    """The error for a session that a store cannot read."""
    return BadData(f"session {session!r} is damaged: {error}")


def taken(session: str) -> StoreError:
    """The error for a new session whose id another one has."""
    return StoreError(f"session {session!r} already exists")


def no_revision(session: str, revision: int) -> UnknownRevision:
    """The error for a fork of a revision that its parent has not reached."""
    return UnknownRevision(session, f"session {session!r} has no revision {revision}")


def no_snapshot(session: str, revision: int) -> UnknownRevision:
    """The error for a prune at a revision without a snapshot."""
    return UnknownRevision(session, f"session {session!r} has no snapshot at revision {revision}")


def refusal(reason: str, session: str, entry: Entry | None = None) -> StateroomError:
    """The error for the one-word reason with which a database script refuses to change a session."""
    match reason:
        case "unknown":
            return UnknownSession(session)
        case "closed":
            return SessionClosed(session)
        case "expired":
            return SessionExpired(session)
        case "leased":
            return SessionLeased(session)
        case "duplicate" if entry is not None:
            return DuplicateCall(session, str(entry.call_id))
        case "conflict" if entry is not None:
            return Conflict(session, entry.revision - 1)
    return StoreUnavailable(f"unexpected answer from the store: {reason!r}")


def check_version(place: str, version: int, newest: int) -> None:
    """Refuse a store that was written by a newer version of Stateroom."""
    if version > newest:
        raise ForeignStore(
            f"{place} was written by a newer Stateroom (store version {version}; this one reads {newest}); "
            "upgrade Stateroom"
        )


def lost_fork(fork: str, parent: str) -> str:
    """The text in `Maintenance.orphans` for a fork without its parent."""
    return f"session {fork!r}, whose parent {parent!r} does not exist"


def lost_parts(kind: str, session: str) -> str:
    """The text in `Maintenance.orphans` for entries, snapshots or blobs without their session."""
    return f"{kind} of session {session!r}, which does not exist"


class SessionBasics(msgspec.Struct, frozen=True, gc=False):
    """The owner, age, expiry and revision of a session."""

    id: str
    environment: str
    owner: str
    created: float
    expires: float
    revision: int
    """The newest revision. A fork starts at the revision of its parent that it forked from."""


class Head(SessionBasics, frozen=True, gc=False):
    """The data that a store has of a session without reading its log."""

    closed: bool = False
    parent: str | None = None
    parent_revision: int = 0
    fence: int = 0
    """The fencing token. Each new lease raises it; a commit made under another one is refused."""
    holder: str | None = None
    """The token of the current or last lease holder."""
    leased_until: float = 0.0
    phase: str | None = None
    """The phase of the session's agent; None until an agent acts in the session, or in the one it was forked from."""
    reward: float | None = None
    """The reward of its verdict."""

    @property
    def age(self) -> tuple[float, str]:
        """The order of listings: by creation, then by id."""
        return self.created, self.id

    def leased(self, now: float) -> bool:
        """Whether the session is leased at this time."""
        return self.holder is not None and self.leased_until > now

    def continues(self, earlier: Head) -> bool:
        """Whether this is the head of the same session, at the same revision or a later one."""
        fixed = ("id", "environment", "owner", "created", "parent", "parent_revision")
        same = all(getattr(self, name) == getattr(earlier, name) for name in fixed)
        return same and self.revision >= earlier.revision

    def after(self, commit: Commit) -> Head:
        """The head after a commit."""
        return replace(
            self,
            revision=commit.entry.revision,
            expires=self.expires if commit.expires is None else commit.expires,
            closed=commit.closes,
            phase=self.phase if commit.phase is None else commit.phase,
            reward=self.reward if commit.reward is None else commit.reward,
        )

    def renewed(self, now: float, expires: float) -> Head:
        """The head with another expiry; see `Store.touch`."""
        self.check_live(now)
        return replace(self, expires=expires)

    def leased_to(self, holder: str, now: float, until: float) -> Head:
        """The head with a lease, or with a renewed one; see `Store.lease`."""
        if self.holder == holder:
            return replace(self, leased_until=until)
        if self.leased(now):
            raise SessionLeased(self.id)
        return replace(self, fence=self.fence + 1, holder=holder, leased_until=until)

    def released_by(self, holder: str) -> Head:
        """The head without the holder's lease; see `Store.release`."""
        return replace(self, holder=None, leased_until=0.0) if self.holder == holder else self

    def check_next(self, commit: Commit, *, duplicate: bool) -> None:
        """Raise unless the commit comes next; `duplicate` says whether the session has its call id already."""
        entry = commit.entry
        self.check_live(entry.at)
        if duplicate:
            raise DuplicateCall(self.id, str(entry.call_id))
        if self.revision != entry.revision - 1 or self.fence != commit.fence:
            raise Conflict(self.id, entry.revision - 1)

    def check_live(self, now: float) -> None:
        """Raise if nothing may be added to this session any more."""
        if self.closed:
            raise SessionClosed(self.id)
        if self.expires <= now:
            raise SessionExpired(self.id)

    def check_parent(self, reached: int) -> None:
        """Raise if the parent has not reached the revision that this forks from."""
        if self.parent is not None and self.parent_revision > reached:
            raise no_revision(self.parent, self.parent_revision)

    def check_replaces(self, kept: Head, *, new: bool) -> None:
        """Raise unless this may take the place of the head that a store has; see `Store.put`."""
        if new:
            raise taken(self.id)
        if not self.continues(kept):
            raise OutdatedRecord(self.id)

    def status(self, now: float) -> Status:
        """Whether the session can be changed at this time."""
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
    """A whole state at one revision."""

    revision: int
    body: bytes


class Commit(msgspec.Struct, frozen=True, gc=False):
    """An entry to append to a session, with the data that is written along with it."""

    session: str
    entry: Entry
    expires: float | None = None
    """The session's new expiry; None keeps the old one."""
    fence: int = 0
    """The fence that the entry was made under."""
    snapshot: Snapshot | None = None
    blobs: Blobs = NO_BLOBS
    closes: bool = False
    """Whether it closes the session."""
    phase: str | None = None
    """The agent's new phase; None keeps the old one."""
    reward: float | None = None
    """The reward, if the entry is the verdict; None keeps the old one."""


class Loaded(msgspec.Struct, frozen=True):
    """A head, the newest snapshot at or before the requested revision, and the entries from there up to it."""

    head: Head
    snapshot: Snapshot | None
    entries: list[Entry]


class Record(msgspec.Struct, frozen=True):
    """All data of one session; entries and snapshots are ordered by revision."""

    head: Head
    entries: list[Entry]
    snapshots: list[Snapshot]
    blobs: dict[str, bytes]

    def check_calls(self) -> None:
        """Raise if two entries have one call id."""
        seen = set()
        for entry in self.entries:
            if entry.call_id is not None and entry.call_id in seen:
                raise DuplicateCall(self.head.id, entry.call_id)
            seen.add(entry.call_id)

    def size(self) -> Size:
        """The number of entries, and the bytes of entries, snapshots and blobs."""
        bodies = (*(entry.body for entry in self.entries), *(snapshot.body for snapshot in self.snapshots))
        return Size(len(self.entries), sum(map(len, (*bodies, *self.blobs.values()))))


def field_types(kind: type[msgspec.Struct]) -> dict[str, type]:
    """The fields of a head, an entry or a snapshot, and the type of each where it is not None."""
    return {name: (get_args(hint) or (hint,))[0] for name, hint in get_type_hints(kind).items()}


class Size(msgspec.Struct, frozen=True):
    """A number of rows (or keys, or objects), and their bytes."""

    rows: int
    bytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)
