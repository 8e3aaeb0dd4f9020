"""Where the episodes of a check take place: one instance of the environment, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Self

from stateroom.environment import Environment
from stateroom.rollout.checking.hidden import Holds, held_by
from stateroom.rollout.checking.watching import Watched
from stateroom.rollout.plan import EPOCH
from stateroom.rollout.world import Row
from stateroom.session import Session, Sessions
from stateroom.session.rescore import Rescorer
from stateroom.store import Store, open_store


class Seated(NamedTuple):
    """A session for an episode, and where it is kept."""

    session: Session[Any]
    store: Store
    rejudging: Rescorer | None
    """What asks the verifier again; without a state the session does."""


class _Rooms(NamedTuple):
    """The sessions in a store."""

    sessions: Sessions[Any]
    rejudging: Rescorer | None


class Stage:
    """One instance of an environment, its sessions, and what is noticed of its tools."""

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self.environment = environment
        self.before: Holds = held_by(environment)
        """What it held before it was used."""
        self.watched = Watched(environment)
        self._rooms: _Rooms
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._rooms = await self._open.enter_async_context(self._new_rooms())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @asynccontextmanager
    async def _new_rooms(self) -> AsyncIterator[_Rooms]:
        async with open_store("memory://") as store:
            sessions = Sessions[Any](self.watched, store)
            rejudging = None if self.environment.state_type is None else Rescorer(self.watched, store)
            try:
                yield _Rooms(sessions, rejudging)
            finally:
                await sessions.stop()
                if rejudging is not None:
                    await rejudging.stop()

    @asynccontextmanager
    async def seat(self, task: int, row: Row) -> AsyncIterator[Seated]:
        """A session for a task, the same each time; nothing is left of it afterwards.

        Sessions that share a state with others get a store of their own, or they would know of one another.
        """
        async with AsyncExitStack() as stack:
            sessions, rejudging = self._rooms
            if self.environment.shared_types:
                sessions, rejudging = await stack.enter_async_context(self._new_rooms())
            session = await sessions.seed(row, seed=task + 1, began=EPOCH, session_id=f"check-{task}")
            try:
                yield Seated(session, sessions.store, rejudging)
            finally:
                sessions.forget(session.id)
                if rejudging is not None:  # else it is nowhere
                    await sessions.store.delete(session.id)
