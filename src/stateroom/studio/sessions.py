"""Studio's API on the sessions of a store: the admin API without tokens, and models that continue sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from stateroom.agent import Agent, Threads
from stateroom.errors import Conflict, StateroomError
from stateroom.model import ModelSource
from stateroom.server import (
    Action,
    AdminAPI,
    MethodRoute,
    Nothing,
    ServedEnvironment,
    Services,
    Text,
    agent_for,
    agent_status,
    json_body,
    read_body,
    read_query,
    route,
)


def session_routes(services: Services, models: Mapping[str, ModelSource]) -> list[MethodRoute]:
    """The endpoints on the sessions of a store."""
    return [*Continuations(services, models).routes(), *AdminAPI(services, models, gives_tokens=False).routes()]


class Continuation(Action):
    message: Text = ""
    """What the user says first."""


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

    def routes(self) -> list[MethodRoute]:
        path = "/sessions/{session:id}"
        return [
            route(f"{path}/continue", GET=self.progress, POST=self.start),
            route(f"{path}/stop", POST=self.stop),
        ]

    async def progress(self, request: Request) -> Response:
        """Whether a model continues a session here, and why the last attempt failed."""
        read_query(request, Nothing)
        return self._status(request.path_params["session"])

    async def start(self, request: Request) -> Response:
        """Let the model continue a session; a checkpoint in its log names the person."""
        wanted, session = read_body(request, Continuation), request.path_params["session"]
        if session in self._tasks or session in self._starting:
            raise Conflict(session, 0, "a model continues this session already; stop it first")
        self._starting.add(session)
        try:
            served = await self._services.environment_of(session)
            agent = agent_for(self._services, self._models, served.name, session)
            opened = await served.sessions.open(session)
            if wanted.message:
                await Threads(served.sessions).add(session, wanted.message)
            await opened.checkpoint(by=wanted.by)
            self._errors.pop(session, None)
            self._tasks[session] = asyncio.create_task(self._run(served, session, agent))
        finally:
            self._starting.discard(session)
        return self._status(session)

    async def stop(self, request: Request) -> Response:
        """Stop the model that continues a session, and cancel its agent's work."""
        wanted, session = read_body(request, Action), request.path_params["session"]
        served = await self._services.environment_of(session)
        if task := self._tasks.get(session):
            task.cancel()
            await asyncio.wait([task])
        agent = (await served.sessions.open(session)).agent
        return agent_status(await agent.cancel("stopped", by=wanted.by))

    def _status(self, session: str) -> Response:
        return json_body({"running": session in self._tasks, "error": self._errors.get(session)})

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
