"""Episodes in this process: sessions in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from stateroom.environment import Environment
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.world import Origin, Row, Seat
from stateroom.session import Result, Session, Sessions
from stateroom.store import open_store


class LocalSeat:
    """A session of this process."""

    def __init__(self, session: Session[Any]) -> None:
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def origin(self) -> Origin | None:
        parent = self._session.parent
        return None if parent is None else Origin(*parent)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        return await self._session.call(name, arguments, call_id=call_id)

    async def revision(self) -> int | None:
        return self._session.revision

    async def fork(self, n: int, at: int | None = None) -> list[Seat]:
        return [LocalSeat(fork) for fork in await self._session.fork(at, n=n)]

    async def verify(self, row: Row, response: Any) -> Row:
        return verdict_fields(await self._session.verify(response))

    async def close(self) -> None:
        await self._session.close()


class StatelessSeat(LocalSeat):
    """A session without a state: to start as it did is to be seeded as it was."""

    def __init__(self, session: Session[Any], again: Callable[[], Awaitable[Seat]]) -> None:
        super().__init__(session)
        self._again = again

    async def revision(self) -> None:
        return None

    async def fork(self, n: int, at: int | None = None) -> list[Seat]:
        return [await self._again() for _ in range(n)]


class LocalWorld:
    """The sessions of an environment in a store."""

    def __init__(self, sessions: Sessions[Any]) -> None:
        self._sessions = sessions

    async def seed(self, row: Row, *, seed: int, began: float) -> Seat:
        session = await self._sessions.seed(row, seed=seed, began=began)
        if self._sessions.environment.state_type is None:
            return StatelessSeat(session, partial(self.seed, row, seed=seed, began=began))
        return LocalSeat(session)


@asynccontextmanager
async def local_world(environment: Environment[Any, Any], store: str) -> AsyncIterator[LocalWorld]:
    """The sessions of an environment in the store at a URL."""
    async with open_store(store) as opened:
        sessions = Sessions[Any](environment, opened)
        try:
            yield LocalWorld(sessions)
        finally:
            await sessions.stop()
