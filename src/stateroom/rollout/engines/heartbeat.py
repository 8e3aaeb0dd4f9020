"""`Heartbeat`: how long a worker may act for its episodes.

A driver that hears nothing of a worker for a while gives its episodes to others. A worker that was stopped for so long,
and wakes up, must not act in them any more: what it would commit is refused by the fence, but its tools and its model
would run for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from stateroom.agent import AgentLog, Outcome, WrappedWorkspace
from stateroom.errors import StateroomError
from stateroom.model import NO_ROW, Answer, Model, ModelSource, Request
from stateroom.rollout.backend import EpisodeSession
from stateroom.session import Verdict

HEARTBEAT_SHARE = 2 / 3
"""A worker relies on its heartbeat for this share of the time after which its driver gives it up."""


class HeartbeatLost(StateroomError, transient=True):
    """This worker was silent for too long: its episodes are those of others now."""


class Heartbeat:
    """Lasts while the driver hears of the worker."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = seconds
        self._until = monotonic() + HEARTBEAT_SHARE * seconds

    def renew(self) -> None:
        """The driver has just heard of the worker."""
        self.check()
        self._until = monotonic() + HEARTBEAT_SHARE * self._seconds

    def check(self) -> None:
        if monotonic() > self._until:
            raise HeartbeatLost("this worker was silent for too long: others have its episodes now")


class GuardedSession(WrappedWorkspace):
    """The session of an episode, in which a worker acts while its heartbeat lasts."""

    def __init__(self, session: EpisodeSession, heartbeat: Heartbeat) -> None:
        super().__init__(session)
        self._session = session
        self._heartbeat = heartbeat

    @property
    def id(self) -> str | None:
        return self._session.id

    @property
    def parent(self) -> tuple[str, int] | None:
        return self._session.parent

    @property
    def agent(self) -> AgentLog:
        return self._session.agent

    async def reply(self, message: str, *, call_id: str) -> str | None:
        self._heartbeat.check()
        return await super().reply(message, call_id=call_id)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        self._heartbeat.check()
        return await super().call(name, arguments, call_id=call_id)

    async def verify(self, response: Any = None) -> Verdict:
        self._heartbeat.check()
        return await self._session.verify(response)

    async def close(self) -> None:
        await self._session.close()


class GuardedModel(Model):
    """A model that a worker asks while its heartbeat lasts."""

    def __init__(self, model: Model, heartbeat: Heartbeat) -> None:
        self.name = model.name
        self._model = model
        self._heartbeat = heartbeat

    async def answer(self, request: Request) -> Answer:
        self._heartbeat.check()
        return await self._model.answer(request)


class GuardedSource(ModelSource):
    """Gives each episode a model that a worker asks while its heartbeat lasts."""

    def __init__(self, source: ModelSource, heartbeat: Heartbeat) -> None:
        super().__init__(source.name, source.for_episode, source.close, connects=source.connects)
        self._source = source
        self._heartbeat = heartbeat

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        return GuardedModel(self._source.for_episode(seed, row), self._heartbeat)
