"""Studio's API on a store as a whole: how many sessions it has, their sizes, and the largest of them."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import asdict

from stateroom.server import Operation, Parameters, Services, get
from stateroom.session import count_sessions
from stateroom.store import Size, Status, without_secrets
from stateroom.version import __version__

MEASURE_SECONDS = 0.2
"""Seconds that a request waits for the measurement; then the response has its progress."""

FRESH_SECONDS = 10.0
"""Seconds for which a measurement is given again."""

MAX_LARGEST = 10
"""Sessions that are listed as the largest."""


class StoreAfter(Parameters):
    after: float = 0.0
    """The `at` of a measurement that is too old for the client: a later one is made."""


class SizedSession(msgspec.Struct, frozen=True):
    id: str
    environment: str
    rows: int
    bytes: int


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of a store; empty until it is measured."""

    at: float = 0.0
    """The time of the measurement."""
    sizes: dict[str, Size] = {}
    """By kind."""
    sessions: dict[str, dict[Status, int]] = {}
    """By environment and status."""
    largest: list[SizedSession] = []


class StoreReply(Measurement, frozen=True, kw_only=True, omit_defaults=True):
    stateroom: str
    """The version."""
    url: str
    live: int
    """Live sessions."""
    complete: bool
    counted: int
    """Sessions that the measurement under way has read."""


class StoreAPI:
    """Measures the contents of a store in the background, because it reads each session."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._task: asyncio.Task[None] | None = None
        self._counted = 0
        """Sessions that the measurement under way has read."""
        self._measured = Measurement()
        """The last complete measurement."""
        services.resources.push_async_callback(self.close)

    def operations(self) -> list[Operation]:
        """The endpoint."""
        return [get("/store", self.statistics)]

    async def statistics(self, query: StoreAfter) -> StoreReply:
        """Read the number of sessions by environment and status, sizes, and the largest sessions.

        Until it is `complete`, a response has the last measurement, if there is one, and the sessions `counted` since.
        """
        services = self._services
        if self._task is None and self._measured.at <= max(query.after, services.now() - FRESH_SECONDS):
            self._counted = 0
            self._task = asyncio.create_task(self._measure())
        if self._task is not None:
            await asyncio.wait([self._task], timeout=MEASURE_SECONDS)
        if self._task is not None and self._task.done():
            done, self._task = self._task, None
            done.result()
        return StoreReply(
            stateroom=__version__,
            url=without_secrets(services.options.store),
            live=await services.store.count(services.now()),
            complete=self._task is None,
            counted=self._counted,
            **asdict(self._measured),
        )

    async def _measure(self) -> None:
        now = self._services.now()
        statistics = await count_sessions(self._services.store, now=now, top=MAX_LARGEST, done=self._count)
        self._measured = Measurement(
            at=now,
            sizes=dict(statistics.sizes),
            sessions={name: dict(statuses) for name, statuses in sorted(statistics.sessions.items())},
            largest=[
                SizedSession(head.id, head.environment, rows=size.rows, bytes=size.bytes)
                for head, size in statistics.largest
            ],
        )

    def _count(self) -> None:
        self._counted += 1

    async def close(self) -> None:
        """Stop a measurement."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
