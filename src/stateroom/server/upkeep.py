"""What a server does for itself now and then: removing expired sessions, and giving their memory back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from stateroom.errors import StateroomError
from stateroom.server.census import Census
from stateroom.server.monitoring.metrics import Figures
from stateroom.session import Sessions
from stateroom.session.containment import contained

logger = logging.getLogger(__name__)

SWEEPS_PER_LIFE = 10
LONGEST_PAUSE = 60.0
"""Expired sessions are removed ten times in the life of one, and once a minute at least."""

MANY = 100
"""So many removed sessions are worth asking the C library for the memory that it keeps."""


class Upkeep:
    """Sweeps the sessions of a server's environments, as long as it is entered."""

    def __init__(self, sessions: Sequence[Sessions], census: Census, figures: Figures, ttl: float) -> None:
        self.sessions = sessions
        self.census = census
        self.figures = figures
        self.pause = min(ttl / SWEEPS_PER_LIFE, LONGEST_PAUSE)
        self._removed = 0

    async def __aenter__(self) -> None:
        await self.census.count()
        self._task = asyncio.create_task(self._sweep_for_ever())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                with contained:
                    await self.sweep()
            except Exception:  # a store's own fault is not the end of all sweeps
                logger.exception("a sweep failed")
            await asyncio.sleep(self.pause)

    async def sweep(self) -> None:
        """Remove what has expired, and count what is there."""
        try:
            swept = [await sessions.sweep() for sessions in self.sessions]
            await self.census.count()
        except StateroomError as error:
            logger.warning("cannot sweep just now: %s", error)
            return
        self.figures.expired(sum(swept))
        self._removed += sum(swept)
        if self._removed >= max(MANY, self.census.live):  # so that looking through all objects is worth while
            self._removed = 0
            gc.collect()  # it empties Python's lists of spare objects too, which hold on to the pages that they are in
            _malloc_trim(0)


def _find_malloc_trim() -> Callable[[int], int]:
    """The C library's function that gives free pages back, where there is one."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return lambda keep: 0
    return found


_malloc_trim = _find_malloc_trim()
