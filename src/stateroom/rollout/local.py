"""Episodes in this process: sessions in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from stateroom.agent import AgentLog
from stateroom.environment import Environment
from stateroom.errors import UnknownSession
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.world import SESSION, Origin, Row, Seat, given_row
from stateroom.session import Result, Session, Sessions
from stateroom.store import open_store


class LocalSeat:
    """A session of this process."""

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self.record: AgentLog = session.agent

    @property
    def replies(self) -> bool:
        return self._session.replies

    def reads(self, name: str) -> bool:
        return self._session.reads(name)

    async def reply(self, message: str, *, call_id: str) -> str | None:
        return await self._session.reply(message, call_id=call_id)

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

    async def fork(self, n: int, at: int | None = None, ids: Sequence[str] | None = None) -> list[Seat]:
        return [LocalSeat(fork) for fork in await self._session.fork(at, n=n, ids=ids)]

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

    async def fork(self, n: int, at: int | None = None, ids: Sequence[str] | None = None) -> list[Seat]:
        return [await self._again() for _ in range(n)]


class LocalWorld:
    """The sessions of an environment in a store."""

    def __init__(self, environment: Environment[Any, Any], sessions: Sessions[Any]) -> None:
        self._environment = environment
        self._sessions = sessions

    async def seed(self, row: Row, *, seed: int, began: float) -> Seat:
        session = await self._sessions.seed(given_row(row), seed=seed, began=began, session_id=row.get(SESSION))
        if self._environment.state_type is None:
            return StatelessSeat(session, partial(self.seed, row, seed=seed, began=began))
        return LocalSeat(session)

    async def find(self, row: Row, *, seed: int, began: float) -> Seat | None:
        if self._environment.state_type is None:
            return await self.seed(row, seed=seed, began=began)
        try:
            return LocalSeat(await self._sessions.open(row[SESSION], closed_too=True))
        except UnknownSession:  # it was not seeded yet
            return None


@asynccontextmanager
async def local_world(environment: Environment[Any, Any], store: str) -> AsyncIterator[LocalWorld]:
    """The sessions of an environment in the store at a URL."""
    async with open_store(store) as opened:
        sessions = Sessions[Any](environment, opened)
        try:
            yield LocalWorld(environment, sessions)
        finally:
            await sessions.stop()
