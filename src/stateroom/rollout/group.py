"""Groups: episodes that start from one state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stateroom.rollout.world import Seat
from stateroom.session.execution import was_cancelled

Start = Callable[[], Awaitable[Seat]]
"""Gives an episode its seat."""


class Group:
    """So many episodes of one task: whichever starts first seeds a session, and forks it for all of them."""

    def __init__(self, seed: Start, size: int) -> None:
        self._seed = seed
        self._size = size
        self._lock = asyncio.Lock()
        self._seats: list[Seat] | None = None
        self._failure: BaseException | None = None

    async def start(self) -> Seat:
        """The seat of one more member; if the group could not be seeded, each is told why."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._seats is None:
                self._seats = await self._seeded()
            return self._seats.pop()

    async def _seeded(self) -> list[Seat]:
        try:
            parent = await self._seed()
            try:
                return await parent.fork(self._size)
            finally:
                await parent.close()  # it can be forked, but is nobody's to act in
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if not was_cancelled(error):
                self._failure = error
            raise
