"""Migrating all sessions of a store to the newest schema of their states."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from secrets import token_hex
from typing import Literal, NamedTuple

from stateroom.errors import (
    BadData,
    Conflict,
    InvalidState,
    SchemaChanged,
    SessionClosed,
    SessionExpired,
    SessionLeased,
    UnknownRevision,
)
from stateroom.session.cached_session import CachedSession
from stateroom.session.environment import SessionEnvironment
from stateroom.session.log import VERDICT
from stateroom.session.maintenance.heads import each_session
from stateroom.session.reader import Reader
from stateroom.session.runtime import SessionLimits, shared_environment
from stateroom.state import State
from stateroom.store import Head, Store

LEASE_SECONDS = 10.0
"""For how many seconds a session is held while it is migrated."""

NO_LIMIT = 1 << 62

Outcome = Literal["migrated", "current", "ended", "in use", "foreign", "failed"]
"""The outcome for a session.

`current`: it needed no migration. `ended`: it cannot be changed any more, and is migrated whenever it is read.
`in use`: a worker holds it, is about to change it, or waits for an external call. `foreign`: its environment is unknown
here.
"""


class Migrated(NamedTuple):
    """The outcome for a session."""

    outcome: Outcome
    version: int | None = None
    """The version of the schema that it was stored in, if known."""
    why: str = ""
    """The reason for a failure."""


def kept_types(environment: SessionEnvironment) -> dict[str, type[State]]:
    """The types of the states that an environment stores, by the environment in the heads of their sessions."""
    kept = {environment.name: environment.state_type} if environment.state_type is not None else {}
    return kept | {shared_environment(name, environment.name): kind for name, kind in environment.shared_types.items()}


class Migrator:
    """Migrates sessions, each in one commit: an entry that says so, with a snapshot in the new schema.

    What is in the store stays as it was, below. Doing it again does what is still to be done, so it can be stopped at
    any time; and servers may go on meanwhile, those of the older code refusing what has been migrated.
    """

    def __init__(self, store: Store, types: Mapping[str, type[State]], now: Callable[[], float]) -> None:
        self.store = store
        self.types = types
        self.now = now

    async def plan(self) -> AsyncIterator[tuple[Head, Migrated]]:
        """Iterate over all sessions with the outcome that a migration would have; changes nothing."""
        async for head, (migrated, _) in each_session(self.store, self._look):
            yield head, migrated

    async def carry_out(self) -> AsyncIterator[tuple[Head, Migrated]]:
        """Migrate all sessions, and iterate over them with their outcomes."""
        async for migrated in each_session(self.store, self._migrate):
            yield migrated

    async def _migrate(self, head: Head) -> Migrated:
        migrated, _ = await self._look(head)
        if migrated.outcome != "migrated":
            return migrated
        holder, now = token_hex(12), self.now()
        try:
            leased = await self.store.lease(head.id, holder, now=now, until=now + LEASE_SECONDS)
        except SessionLeased:
            return migrated._replace(outcome="in use")
        try:
            migrated, cached = await self._look(leased)  # much may have happened before the lease
            if cached is not None:
                await cached.append(cached.prepare("migrated", {}))
            return migrated
        except (Conflict, SessionClosed, SessionExpired):  # a writer without a lease was quicker
            return migrated._replace(outcome="in use")
        finally:
            await self.store.release(head.id, holder)

    async def _look(self, head: Head) -> tuple[Migrated, CachedSession | None]:
        """The planned outcome for a session, and the session itself, if it needs a migration."""
        if head.environment not in self.types:
            return Migrated("foreign"), None
        limits = SessionLimits(max_state=NO_LIMIT, max_log=NO_LIMIT, ttl=0, now=self.now)
        cached = CachedSession(Reader(self.store, self.types[head.environment]), head, limits)
        try:
            standing, document = await cached.reader.read(head.id, head.revision)
        except (SchemaChanged, InvalidState, BadData, UnknownRevision) as error:
            return Migrated("failed", why=str(error)), None
        if not standing.outdated:
            return Migrated("current", document.version), None
        if head.status(self.now()) != "live" or await self.store.find_call(head.id, VERDICT) is not None:
            return Migrated("ended", document.version), None
        if standing.progress.pending or await self._is_deciding(head):
            return Migrated("in use", document.version), None
        cached.load(standing, document)
        cached.head = head
        return Migrated("migrated", document.version), cached

    async def _is_deciding(self, head: Head) -> bool:
        """Whether the log of a shared state ends in an announced change, which must stay the last."""
        last = await self.store.entries(head.id, after=head.revision - 1)
        return any(entry.kind == "intent" for entry in last)
