"""Groups: episodes that start from one state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from stateroom.rollout.rows import Key, key_of
from stateroom.rollout.world import PARENT, SESSION, Row, Seat

Start = Callable[[], Awaitable[Seat]]
"""Gives an episode its seat."""

Find = Callable[[Row], Awaitable[Seat | None]]
"""Gives an episode the seat that it had, if it was begun before."""


class Group:
    """Episodes of one task: whichever starts first has a session seeded, and forked for all that have no seat yet."""

    def __init__(self, rows: Sequence[Row], seed: Start, find: Find) -> None:
        self._rows = rows
        self._seed = seed
        self._find = find
        self._lock = asyncio.Lock()
        self._seats: dict[Key, Seat] | None = None
        self._failure: Exception | None = None

    async def start(self, row: Row) -> Seat:
        """The seat of a member; if the group could not be seeded, each is told why."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._seats is None:
                self._seats = await self._seated()
            return self._seats.pop(key_of(row))

    async def _seated(self) -> dict[Key, Seat]:
        try:
            found = {key_of(row): await self._find(row) for row in self._rows}
            new = [row for row in self._rows if found[key_of(row)] is None]
            seats = dict(zip(map(key_of, new), await self._forked(new) if new else (), strict=True))
            return {key: seat or seats[key] for key, seat in found.items()}
        except Exception as error:
            self._failure = error
            raise

    async def _forked(self, rows: Sequence[Row]) -> list[Seat]:
        """New seats for rows that may say which sessions these are, and what they branch off."""
        parent = await self._seed()
        origin = rows[0].get(PARENT)
        try:
            if origin is None:
                return await parent.fork(len(rows))
            return await parent.fork(len(rows), origin["revision"], [row[SESSION] for row in rows])
        finally:
            await parent.close()  # it can be forked, but is nobody's to act in
