"""Live sessions: how many there are, whether one more is allowed, and the removal of those that have expired."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from stateroom.errors import Busy, StateroomError
from stateroom.server.metrics import Metrics
from stateroom.session import Sessions, contained
from stateroom.store import Store

logger = logging.getLogger(__name__)

RECOUNT_SECONDS = 1.0
"""Seconds between two counts while the limit is reached or metrics are read, and that the latter wait for a count."""

ATTEMPTS = 3
"""Attempts to count while no session is created or closed."""

SWEEPS_PER_LIFE = 10
MAX_PAUSE_SECONDS = 60.0
"""A sweep runs ten times in the life of a session, and at least once a minute."""

MANY_SESSIONS = 100
"""Number of removed sessions from which the C library is asked for free memory."""


class SessionCount:
    """The number of live sessions: counted by the store now and then, and updated by this process in between."""

    def __init__(self, store: Store, limit: int, now: Callable[[], float]) -> None:
        self.store = store
        self.limit = limit
        self.now = now
        self.live = 0
        self._pending = 0
        """Sessions that are admitted, and may or may not be in the store yet."""
        self._changes = 0
        """How often a session was created or closed."""
        self._counted = float("-inf")

    async def update(self) -> None:
        """Count the sessions in the store; again, if one was created or closed meanwhile."""
        self._counted = self.now()
        for _ in range(ATTEMPTS):
            changes = self._changes
            counted = await self.store.count(self._counted)
            if self._changes == changes:
                break
        self.live = counted + self._pending  # at worst some are counted twice, until the next time

    async def refresh(self) -> None:
        """Count anew, since other workers create sessions too; unless it was done just now, or the store is slow."""
        if self.now() - self._counted > RECOUNT_SECONDS:
            with suppress(StateroomError, TimeoutError):
                async with asyncio.timeout(RECOUNT_SECONDS):
                    await self.update()

    @asynccontextmanager
    async def admit(self, number: int = 1) -> AsyncIterator[None]:
        """Count new sessions, which are made in this context; `Busy` if the limit would be exceeded."""
        if self.live + number > self.limit and self.now() - self._counted > RECOUNT_SECONDS:
            await self.update()
        if self.live + number > self.limit:
            raise Busy(f"the server has reached its limit of {self.limit:,} live sessions; try again later")
        self.live += number
        self._pending += number
        self._changes += 1
        try:
            yield
        except BaseException:
            self.live -= number
            raise
        finally:
            self._pending -= number
            self._changes += 1

    def remove(self) -> None:
        """Count a session that was closed."""
        self.live -= 1
        self._changes += 1


class Sweeper:
    """Removes expired sessions of a server's environments while it is entered, and returns their memory."""

    def __init__(
        self, sessions: Sequence[Sessions[Any]], count: SessionCount, ttl: float, metrics: Metrics | None = None
    ) -> None:
        self.sessions = sessions
        self.count = count
        self.metrics = metrics
        self.pause = min(ttl / SWEEPS_PER_LIFE, MAX_PAUSE_SECONDS)
        self._removed = 0

    async def __aenter__(self) -> None:
        await self.count.update()
        self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            try:
                with contained:
                    await self.sweep()
            except Exception:  # an unexpected error of a store must not end all sweeps
                logger.exception("a sweep failed")
            await asyncio.sleep(self.pause)

    async def sweep(self) -> None:
        """Remove expired sessions, and count the rest."""
        try:
            swept = [await sessions.sweep() for sessions in self.sessions]
            await self.count.update()
        except StateroomError as error:
            logger.warning("cannot sweep now: %s", error)
            return
        if self.metrics is not None:
            self.metrics.expired(sum(swept))
        self._removed += sum(swept)
        if self._removed >= max(MANY_SESSIONS, self.count.live):  # rarely: a collection looks at every object
            self._removed = 0
            # Of 10,000 expired sessions' memory (36 MB on 62 MB) all is returned by this, and nothing without it.
            gc.collect()  # it also empties Python's free lists, which keep pages in use
            _malloc_trim(0)


def _find_malloc_trim() -> Callable[[int], int]:
    """The C library's function that returns free pages to the system, where there is one."""
    try:
        function: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library or system
        return lambda keep: 0
    return function


_malloc_trim = _find_malloc_trim()
