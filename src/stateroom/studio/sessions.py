"""Studio's API on the sessions of a store.

It is the admin API without tokens, with models that continue sessions, and the sessions that wait for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from stateroom.agent import WAITING, Agent, Threads
from stateroom.errors import Contradiction, StateroomError
from stateroom.lru import LRU
from stateroom.model import ModelSource
from stateroom.server import (
    Action,
    AdminAPI,
    AgentReply,
    Operation,
    ServedEnvironment,
    Services,
    Text,
    agent_for,
    get,
    post,
)
from stateroom.session import History, SessionSummary
from stateroom.store import Head, HeadFilter

MAX_SESSIONS_SEARCHED = 1000
"""Sessions among which the oldest questions are found."""

MAX_QUESTIONS = 100
"""Questions that are listed."""


def session_operations(services: Services, models: Mapping[str, ModelSource]) -> list[Operation]:
    """The endpoints on the sessions of a store."""
    admin = AdminAPI(services, models, gives_tokens=False)
    return [*Continuations(services, models).operations(), *admin.operations()]


class Continuation(Action):
    message: Text = ""
    """The user's first message."""


class ContinuationStatus(msgspec.Struct, frozen=True):
    running: bool
    error: str | None
    """Why the last attempt failed."""


class Continuations:
    """Models that continue sessions, in the background: a page may be closed, and opened again."""

    def __init__(self, services: Services, models: Mapping[str, ModelSource]) -> None:
        self._services = services
        self._models = models
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._starting: set[str] = set()
        """Sessions that are about to have a task."""
        self._errors: dict[str, str] = {}
        """Why the last attempt in a session failed."""
        services.resources.push_async_callback(self.close)

    def operations(self) -> list[Operation]:
        """The endpoints."""
        path = "/sessions/{session:id}"
        return [
            get(f"{path}/continue", self.progress),
            post(f"{path}/continue", self.start, errors=(409,)),
            post(f"{path}/stop", self.stop, errors=(409,)),
        ]

    async def progress(self, session: str) -> ContinuationStatus:
        """Whether a model continues a session here, and why the last attempt failed."""
        return ContinuationStatus(session in self._tasks, self._errors.get(session))

    async def start(self, session: str, body: Continuation) -> ContinuationStatus:
        """Let the model continue a session; a checkpoint in its log names the person."""
        if session in self._tasks or session in self._starting:
            raise Contradiction("a model already continues this session; stop it first")
        self._starting.add(session)
        try:
            served = await self._services.environment_of(session)
            agent = agent_for(self._services, self._models, served.name, session)
            opened = await served.sessions.open(session)
            if body.message:
                await Threads(served.sessions).add(session, body.message)
            await opened.checkpoint(by=body.by)
            self._errors.pop(session, None)
            self._tasks[session] = asyncio.create_task(self._run(served, session, agent))
        finally:
            self._starting.discard(session)
        return await self.progress(session)

    async def stop(self, session: str, body: Action) -> AgentReply:
        """Stop the model that continues a session, and cancel its agent's work."""
        served = await self._services.environment_of(session)
        if task := self._tasks.get(session):
            task.cancel()
            await asyncio.wait([task])
        agent = (await served.sessions.open(session)).agent
        return AgentReply.of(await agent.cancel("stopped", by=body.by))

    async def _run(self, served: ServedEnvironment, session: str, agent: Agent) -> None:
        try:
            done = await Threads(served.sessions).run(session, agent)
            if done.status == "failed":
                self._errors[session] = done.reason or "the model failed"
        except StateroomError as error:
            self._errors[session] = str(error)
        finally:
            del self._tasks[session]

    async def close(self) -> None:
        """Stop all models. What they have done stays; the agents can be continued."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class OpenQuestion(SessionSummary, frozen=True, kw_only=True):
    """A session whose agent waits for a person."""

    asked: float
    """The time at which it began to wait."""


class Inbox(msgspec.Struct, frozen=True):
    sessions: list[OpenQuestion]
    more: bool
    """Whether more sessions wait."""


class InboxAPI:
    """The questions in a store. A log is read again only when the session has changed."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._asked: LRU[tuple[str, int], float] = LRU(MAX_SESSIONS_SEARCHED)
        """When the agent of a session began to wait, by id and revision."""

    def operations(self) -> list[Operation]:
        """The endpoint."""
        return [get("/inbox", self.inbox)]

    async def inbox(self) -> Inbox:
        """The sessions whose agents wait for a person, the oldest question first."""
        now = self._services.now()
        wanted = HeadFilter(status="live", at=now, phase=WAITING)
        heads = await self._services.store.heads(wanted, order="oldest", limit=MAX_SESSIONS_SEARCHED)
        asked = await asyncio.gather(*map(self._asked_at, heads))
        waiting = sorted(zip(asked, heads, strict=True), key=lambda each: (each[0], each[1].age))
        listed = [OpenQuestion.of(head, now, asked=at) for at, head in waiting[:MAX_QUESTIONS]]
        return Inbox(listed, len(waiting) > MAX_QUESTIONS)

    async def _asked_at(self, head: Head) -> float:
        key = (head.id, head.revision)
        if key not in self._asked:
            _, entry = await History(self._services.store).agent_entry(head, head.revision)
            self._asked.keep(key, head.created if entry is None else entry.at)
        return self._asked.keep(key, self._asked[key])
