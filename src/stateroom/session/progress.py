"""A session's progress: its random state, clock and ids, and what it knows of the world outside and of its agent.

Random numbers, time and ids follow from the session's seed and the number of write calls committed so far. So a replay,
a fork and a rewind have the same ones again, and a call that fails uses none up. Without a state nothing counts the
calls: there they follow from the seed and the call's id, if it has one.

What happened outside cannot be repeated: progress has the external calls whose outcome is unknown, and the versions of
the session's resources. It also has the agent's status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from stateroom.session.lifecycle import INITIAL, AgentStatus

STARTED = "\nstarted"
"""Stands behind the call id in the entry which says that an external call was started; no call id has it."""

ASKED = "\nasked"
"""The same, where it asked for input."""

TICK_SECONDS = 1.0
"""Seconds that pass on a session's clock with each committed write call."""

LATEST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
"""The end of time: there the clock stands still."""


class Clock:
    """A session's clock. It stands still during a call; `advance` moves it forward."""

    def __init__(self, now: float) -> None:
        self._now = datetime.fromtimestamp(min(now, LATEST), UTC)
        self.advanced = 0.0

    def now(self) -> datetime:
        """Return the session's time, in UTC."""
        return self._now

    def advance(self, by: timedelta | float) -> None:
        """Move the clock forward by a timedelta or seconds. The change is kept when the call is committed."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if seconds < 0:
            raise ValueError("time cannot go back")
        self._now += timedelta(seconds=seconds)  # raises beyond the year 9999, and then no time has passed
        self.advanced += seconds


class Progress(msgspec.Struct, frozen=True, gc=False):
    """A session's random state, clock, pending external calls, resources and agent status at one revision."""

    seed: int
    began: float
    steps: int = 0
    offset: float = 0.0
    pending: tuple[str, ...] = ()
    """The ids of external calls that were started, and whose outcome is unknown."""
    resources: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The versions of its resources, by name; of those that were used."""
    agent: AgentStatus = INITIAL
    """The status of its agent."""
    made: tuple[str, ...] = ()
    """The ids of calls that the agent has made since it last said something, and that are in the log."""
    edited: bool = False
    """Whether an edit led here, so that the calls alone do not lead to the state."""

    def after(self, advanced: float) -> Progress:
        """The progress after one more committed write call."""
        steps, offset = self.steps + 1, self.offset + advanced
        return replace(self, steps=steps, offset=offset)

    def rewound(self, pending: tuple[str, ...], at: int) -> Progress:
        """This progress after a rewind to it, at revision `at`; pending external calls stay pending."""
        begun = tuple(each for each in pending if each in self.pending and self.agent.is_next(each))
        return replace(self, pending=pending, agent=self.agent.rewound(at, (*self.made, *begun)))

    def plain(self) -> list[Any]:
        """The same as JSON data."""
        known = [self.seed, self.began, self.steps, self.offset]
        if self.edited:
            return [*known, list(self.pending), dict(self.resources), self.agent.plain(), list(self.made), True]
        if self.agent is not INITIAL:
            return [*known, list(self.pending), dict(self.resources), self.agent.plain(), list(self.made)]
        if self.resources:
            return [*known, list(self.pending), dict(self.resources)]
        return [*known, list(self.pending)] if self.pending else known

    @classmethod
    def of_plain(cls, data: list[Any]) -> Progress:
        """The progress that JSON data stands for."""
        progress = cls(*data[:4], *map(tuple, data[4:5]), *data[5:6])
        if len(data) > 6:
            return replace(progress, agent=AgentStatus.of_plain(data[6]), made=tuple(*data[7:8]), edited=len(data) > 8)
        return progress

    def of_call(self, call_id: str) -> Progress:
        """Progress for one call that follows no other."""
        digest = blake2b(f"{self.seed}/{call_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return Progress(int.from_bytes(digest) >> 1, self.began)

    def rng(self) -> Random:
        return Random(f"{self.seed}/{self.steps}")

    def clock(self) -> Clock:
        return Clock(self.began + self.offset + self.steps * TICK_SECONDS)

    def new_id(self) -> Callable[..., str]:
        """Return a function that makes ids: `new_id()`, or `new_id("order")` for an id with a prefix."""
        given = 0

        def new_id(prefix: str = "") -> str:
            nonlocal given
            given += 1
            digest = blake2b(f"{self.seed}/{self.steps}/{given}".encode(), digest_size=8).hexdigest()
            return f"{prefix}_{digest}" if prefix else digest

        return new_id
