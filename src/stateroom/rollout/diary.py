"""Diaries: what agents say in episodes whose sessions are kept elsewhere, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import UnknownSession
from stateroom.rollout.world import SESSION, Row, Seat, World, given_row
from stateroom.session import Lifecycle, Session, Sessions
from stateroom.state import State
from stateroom.store import open_store


class Blank(State):
    """Nothing: a diary is all log."""


class DiaryWorld:
    """A world whose agents write down in a store what they say, so that another process can go on with their work."""

    def __init__(self, world: World, diaries: Sessions[Any]) -> None:
        self._world = world
        self._diaries = diaries

    async def seed(self, row: Row, *, seed: int, began: float) -> Seat:
        seat = await self._world.seed(row, seed=seed, began=began)
        seat.record = (await self._empty(row)).agent
        return seat

    async def find(self, row: Row, *, seed: int, began: float) -> Seat | None:
        try:
            diary = await self._diaries.open(row[SESSION])
        except UnknownSession:
            return None
        seat = await self._world.find(row, seed=seed, began=began)
        if seat is not None:
            seat.record = diary.agent
        return seat

    async def _empty(self, row: Row) -> Session[Any]:
        """A diary in which nothing is written, or all of it is of a session that is gone."""
        try:
            diary = await self._diaries.open(row[SESSION])
        except UnknownSession:
            return await self._diaries.seed(given_row(row), session_id=row[SESSION])
        await diary.rewind(1)
        return diary


@asynccontextmanager
async def diary_world(
    world: AbstractAsyncContextManager[World], store: str, lifecycle: Lifecycle
) -> AsyncIterator[DiaryWorld]:
    """A world, with diaries in the store at a URL."""
    async with world as opened, open_store(store) as kept:
        yield DiaryWorld(opened, Sessions[Any](_diaries(lifecycle), kept))


def _diaries(lifecycle: Lifecycle) -> Environment[Blank]:
    """What diaries are sessions of: an agent goes through the same phases in one as in its own environment."""

    class Diary(Environment[Blank]):
        """Keeps what an agent says."""

        name = "diary"

    Diary.lifecycle = lifecycle
    return Diary()
