"""Shared parts of an environment's sessions: the environment, store, clock, limits and runner."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from secrets import token_hex
from time import time
from typing import Annotated, Any

from msgspec import structs
from pydantic import Field

from stateroom.errors import SessionClosed, SessionExpired, TimedOut, UnknownSession
from stateroom.options import options
from stateroom.session.environment import Procedure, SessionEnvironment
from stateroom.session.log import read_entry, task_row
from stateroom.session.reader import Reader
from stateroom.session.runner import Runner
from stateroom.state import State
from stateroom.store import Entry, Head, Store

WEEK = 7 * 24 * 3600.0

YEAR = 365 * 24 * 3600.0

RENEWED_SHARE = 0.99
"""An expiry that is this share of the time to live away is not renewed."""


MaxState = Annotated[int, Field(ge=1, description="Maximum size of a stored state, in bytes.")]
MaxLog = Annotated[int, Field(ge=1, description="Maximum bytes stored for one session.")]
Timeout = Annotated[
    float, Field(ge=0.01, description="Timeout of a tool call in seconds, unless the tool sets its own.")
]


@options
class SessionLimits:
    """Limits of an environment's sessions, and their clock."""

    ttl: Annotated[
        float,
        Field(ge=0, description="Lifetime of a session after its last use, in seconds; 0 keeps its expiry unchanged."),
    ] = WEEK
    timeout: Timeout = 30.0
    hot: Annotated[int, Field(ge=0, description="Maximum sessions that a process keeps in memory.")] = 10_000
    max_state: MaxState = 1 << 30
    max_log: MaxLog = 1 << 34
    max_calls: Annotated[
        int,
        Field(
            ge=1, description="Maximum calls of a session that run or wait in a process; further calls raise `Busy`."
        ),
    ] = sys.maxsize
    shared_ttl: Annotated[
        float, Field(ge=0, description="Lifetime of the state of a user or the app after its last use, in seconds.")
    ] = YEAR
    now: Annotated[Callable[[], float], Field(description="The clock, in seconds since 1970.")] = time

    @cached_property
    def renew_below(self) -> float:
        """While an expiry is this many seconds away it is not renewed, which saves the store work."""
        return RENEWED_SHARE * self.ttl if self.ttl else -inf


class Runtime:
    """One environment on one store, with the limits of its sessions."""

    def __init__(self, environment: SessionEnvironment, store: Store, limits: SessionLimits) -> None:
        self.environment = environment
        self.store = store
        self.limits = limits
        self.now = limits.now
        self.shared_limits = replace(limits, ttl=0, max_log=sys.maxsize)
        """Of states that sessions share, which are kept for a time of their own."""
        self.runner = Runner(limits.timeout)
        self.reader = Reader(store, environment.state_type or State)

    def task_of(self, seeded: Entry, verdict: Mapping[str, Any] | None = None) -> Any:
        """The typed task in the entry that a session began with, and in the facts of its verdict."""
        entry = read_entry(seeded)
        row = task_row(entry, verdict)
        if "lacks" in entry.facts and not row.keys() >= {*entry.facts["lacks"]}:
            return self.environment.parse_incomplete_task(row)
        return self.environment.parse_task(row)

    def ensure_live(self, head: Head, include_closed: bool) -> None:
        """Raise if a session has expired, or is closed."""
        if head.expires <= self.now():
            raise SessionExpired(head.id)
        if head.closed and not include_closed:
            raise SessionClosed(head.id)

    async def run(self, hook: str, procedure: Procedure, arguments: dict[str, Any]) -> Any:
        """Run a function of the environment; `hook` names it if it takes too long."""
        try:
            return await self.runner.run(procedure, arguments)
        except TimedOut as error:
            raise TimedOut(f"{self.environment.name}.{hook} did not finish within {error}") from None

    async def shared_head(self, identity: str) -> Head:
        """The head of a shared state or a world; `UnknownSession` if it is gone, or has not been used for too long."""
        head, now = await self.store.head(identity), self.now()
        if head.expires <= now:
            await self.store.sweep(now)  # not `delete`: another may have made it anew just now
            raise UnknownSession(identity)
        return head

    async def renewed(self, head: Head) -> Head:
        """The head of a session whose life is renewed, because it is used."""
        now = self.now()
        if head.closed or head.expires - now > self.limits.renew_below:
            return head
        expires = now + self.limits.ttl
        await self.store.touch(head.id, now=now, expires=expires)
        return structs.replace(head, expires=expires)

    def new_head(
        self,
        owner: str = "",
        revision: int = 1,
        *,
        parent: str | None = None,
        session_id: str | None = None,
        scope: str | None = None,
        ttl: float | None = None,
    ) -> Head:
        """A head for a new session; with a `scope`, for a world or a shared state, which is kept as one."""
        name = self.environment.name
        return Head(
            id=session_id or new_session_id(),
            environment=name if scope is None else shared_environment(scope, name),
            owner=owner,
            created=(now := self.now()),
            expires=now + (self.limits.ttl if ttl is None else ttl),
            revision=revision,
            parent=parent,
            parent_revision=revision if parent else 0,
            fence=int(now * 1e6),  # so that a session that is deleted and seeded again under its id has another fence
        )


def shared_environment(name: str, environment: str) -> str:
    """The environment in a shared state's head, which is not the name of any environment."""
    return f"{environment}:{name}"


def new_session_id() -> str:
    """An id that cannot be guessed."""
    return token_hex(12)
