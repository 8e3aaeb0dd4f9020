"""What all parts of an environment's sessions share: the environment, the store, the clock, the limits, the runner."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import inf
from secrets import token_hex
from time import time
from typing import Any

from stateroom.session.environment import SessionEnvironment
from stateroom.session.log import read_entry, task_row
from stateroom.session.reader import Reader
from stateroom.session.runner import Runner
from stateroom.state import State
from stateroom.store import Entry, Head, Store

RENEWED = 0.99
"""An expiry that is this share of the time to live away is not renewed."""


class SessionLimits:
    """What sessions are held to, and their clock.

    `max_state` is how many bytes a state may have, `max_log` how many may be stored for a session in all, and `ttl` how
    many seconds a session lives after its last use; with 0 its expiry is not renewed.
    """

    def __init__(
        self,
        max_state: int,
        max_log: int = sys.maxsize,
        ttl: float = 0.0,
        now: Callable[[], float] = time,
    ) -> None:
        self.max_state = max_state
        self.max_log = max_log
        self.ttl = ttl
        self.now = now
        self.renew_below = RENEWED * ttl if ttl else -inf
        """While an expiry is this many seconds away it is not renewed, which saves the store work."""


class Runtime(SessionLimits):
    """One environment on one store, with the limits that `Sessions` was given."""

    def __init__(
        self,
        environment: SessionEnvironment,
        store: Store,
        *,
        ttl: float,
        timeout: float,
        max_state: int,
        max_log: int,
        max_calls: int,
        shared_ttl: float,
        now: Callable[[], float],
    ) -> None:
        super().__init__(max_state, max_log, ttl, now)
        self.environment = environment
        self.store = store
        self.timeout = timeout
        self.max_calls = max_calls
        self.shared_ttl = shared_ttl
        self.shared_limits = SessionLimits(max_state, now=now)
        """Of states that sessions share, which are kept for a time of their own."""
        self.runner = Runner()
        self.reader = Reader(store, environment.state_type or State)

    def task_of(self, seeded: Entry, verdict: Mapping[str, Any] | None = None) -> Any:
        """The typed task in the entry that a session began with, and in the facts of its verdict."""
        entry = read_entry(seeded)
        row = task_row(entry, verdict)
        if "lacks" in entry.facts and not row.keys() >= {*entry.facts["lacks"]}:
            return self.environment.parse_incomplete_task(row)
        return self.environment.parse_task(row)

    def new_head(self, owner: str, revision: int, *, parent: str | None = None, session_id: str | None = None) -> Head:
        """A head for a new session."""
        return Head(
            id=session_id or new_session_id(),
            environment=self.environment.name,
            owner=owner,
            created=(now := self.now()),
            expires=now + self.ttl,
            revision=revision,
            parent=parent,
            parent_revision=revision if parent else 0,
            fence=int(now * 1e6),  # so that a session that is deleted and seeded again under its id has another fence
        )


def new_session_id() -> str:
    """An id that cannot be guessed."""
    return token_hex(12)
