"""Episodes in this process: sessions in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from stateroom.environment import Environment
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.world import Row
from stateroom.session import Result, Session, Sessions
from stateroom.store import open_store


class LocalSeat:
    """A session of this process."""

    def __init__(self, session: Session[Any]) -> None:
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        return await self._session.call(name, arguments, call_id=call_id)

    async def verify(self, row: Row, response: Any) -> Row:
        return verdict_fields(await self._session.verify(response))

    async def close(self) -> None:
        await self._session.close()


class LocalWorld:
    """The sessions of an environment in a store."""

    def __init__(self, sessions: Sessions[Any]) -> None:
        self._sessions = sessions

    async def seed(self, row: Row, *, seed: int, began: float) -> LocalSeat:
        return LocalSeat(await self._sessions.seed(row, seed=seed, began=began))


@asynccontextmanager
async def local_world(environment: Environment[Any, Any], store: str) -> AsyncIterator[LocalWorld]:
    """The sessions of an environment in the store at a URL."""
    async with open_store(store) as opened:
        yield LocalWorld(Sessions[Any](environment, opened))
