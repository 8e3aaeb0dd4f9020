"""How many sessions there are, and whether there is room for one more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stateroom.errors import Busy
from stateroom.store import Store

RECOUNT = 1.0
"""Seconds after which a full house is counted again."""

PATIENCE = 3
"""How often to count again when sessions came or went meanwhile."""


class Census:
    """Counts live sessions: exactly now and then, and by what this process sees of them in between."""

    def __init__(self, store: Store, limit: int, now: Callable[[], float]) -> None:
        self.store = store
        self.limit = limit
        self.now = now
        self.live = 0
        self._coming = 0
        """Sessions that are admitted, and may be in the store or not yet."""
        self._moves = 0
        """How often a session came or went."""
        self._counted = float("-inf")

    async def count(self) -> None:
        """Ask the store. One that came meanwhile may be in the answer or not, so then it is asked again."""
        self._counted = self.now()
        for _ in range(PATIENCE):
            moves = self._moves
            counted = await self.store.count(self._counted)
            if self._moves == moves:
                break
        self.live = counted + self._coming  # at worst some are counted twice, until the next time

    @asynccontextmanager
    async def admission(self, number: int = 1) -> AsyncIterator[None]:
        """So many sessions are being made; `Busy` if there would be more than there may be."""
        if self.live + number > self.limit and self.now() - self._counted > RECOUNT:
            await self.count()
        if self.live + number > self.limit:
            raise Busy(f"{self.limit:,} sessions are live, as many as this server takes; try again later")
        self.live += number
        self._coming += number
        self._moves += 1
        try:
            yield
        except BaseException:
            self.live -= number  # there are none
            raise
        finally:
            self._coming -= number
            self._moves += 1

    def leave(self) -> None:
        """A session was closed."""
        self.live -= 1
        self._moves += 1
