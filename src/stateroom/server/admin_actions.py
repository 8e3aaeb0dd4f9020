"""The endpoints of the admin API that change something: an operator acts in sessions by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from inspect import cleandoc
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stateroom.errors import InvalidArguments, InvalidState, format_path
from stateroom.rollout import example_file, read_tasks
from stateroom.server import api
from stateroom.server.description.schemas import Schema, schema_of
from stateroom.server.environment import ServedEnvironment
from stateroom.server.request import checked_response, wrong_field
from stateroom.server.services import Services
from stateroom.session import Edit, Pending, Session, head_data
from stateroom.state import EditChange

EXAMPLES = 100
"""Example rows of an environment that are listed."""


class Action(api.Parameters):
    by: api.Name | None = None
    """The person who acts, for the log."""


class NewSession(Action):
    environment: str
    row: dict[str, Any]
    """The task row."""
    owner: api.Text = ""


class ToolCall(Action):
    name: str
    arguments: dict[str, Any] = {}
    call_id: api.Name | None = None
    """The same id again gives the recorded result, and runs nothing."""
    user: api.User | None = None
    """Whose call it is, if the session has several users."""


class Message(Action):
    message: str
    call_id: api.Name


class Verification(Action):
    response: dict[str, Any] | None = None
    """A Responses object; by default what was said in the session."""


class StateEdit(api.Parameters):
    changes: list[EditChange]
    by: api.Name
    reason: api.Text = ""


class NewForks(Action):
    at: api.RevisionOrName | None = None
    n: api.Amount = 1
    pending: Pending = "refuse"
    edit: StateEdit | None = None
    """An edit that each fork begins with; if it is refused, none is made."""


class Rewind(Action):
    to: api.RevisionOrName


class Steps(Action):
    steps: api.Amount = 1


class NewCheckpoint(Action):
    name: api.Name


class Answer(Action):
    input: Any
    to: int | None = None
    """The agent's `said` in the entry of the question; an answer to a question that has one is refused."""
    user: api.User | None = None
    """The user who answers, if there are several."""


class Cancellation(Action):
    reason: api.Text = ""


class AdminActions:
    """The endpoints below `/admin` that act in sessions. `models` names the environments in which a model can act."""

    def __init__(self, services: Services, models: Collection[str], *, gives_tokens: bool) -> None:
        self.services = services
        self.models = models
        self.gives_tokens = gives_tokens
        self._descriptions: dict[str, Schema] = {}
        """What `environments` says of each, by name."""

    def of_session(self) -> dict[str, api.RouteEndpoint]:
        """The actions in one session, by name."""
        actions = (self.call, self.reply, self.verify, self.edit, self.fork, self.rewind, self.undo, self.redo)
        return {each.__name__: each for each in (*actions, self.checkpoint, self.answer, self.cancel, self.close)}

    async def environments(self, request: Request) -> Response:
        """The served environments, with all that a form for their tasks, tools and states needs."""
        api.read_query(request, api.Nothing)
        served, known = self.services.environments, self._descriptions
        for name in served.keys() - known.keys():
            known[name] = await asyncio.to_thread(self._describe, served[name])
        return api.json_body({"environments": [known[name] for name in served]})

    def _describe(self, served: ServedEnvironment) -> Schema:
        environment = served.environment
        tools = [{**tool.definition, "effect": tool.effect} for tool in environment.tools.values()]
        examples = example_file(type(environment))
        return {
            "name": served.name,
            "description": cleandoc(type(environment).__doc__ or ""),
            "tools": tools,
            "replies": environment.reply_tool is not None,
            "task_schema": schema_of(environment.task_type),
            "state_schema": None if environment.state_type is None else schema_of(environment.state_type),
            "examples": [] if examples is None else [*read_tasks(examples, environment)[:EXAMPLES]],
            "model": served.name in self.models,
        }

    async def seed(self, request: Request) -> Response:
        wanted = api.read_body(request, NewSession)
        served = self.services.session_environments.get(wanted.environment)
        if served is None or served.stateless:
            known = [each.name for each in self.services.session_environments.values() if not each.stateless]
            problem = "is not served here" if served is None else "is stateless: nothing keeps its sessions"
            raise wrong_field("environment", f"{wanted.environment!r} {problem}; there are: {', '.join(known)}")
        with await served.count.admit():
            seeding = served.sessions.seed(wanted.row, owner=wanted.owner, by=wanted.by)
            session = await served.guard_user_code("seed", seeding)
        served.metrics.created(served.name)
        return await self._head(session.id)

    async def call(self, request: Request) -> Response:
        """Call a tool; `output` is what a model would read, also where the call failed."""
        wanted, (served, session) = api.read_body(request, ToolCall), await self._opened(request)
        given = served.known_arguments(wanted.name, wanted.arguments)
        result = await session.call(wanted.name, given, call_id=wanted.call_id, user=wanted.user, by=wanted.by)
        return api.json_body({"ok": result.ok, "output": result.content, "revision": session.revision})

    async def reply(self, request: Request) -> Response:
        wanted, (_, session) = api.read_body(request, Message), await self._opened(request)
        said = await session.reply(wanted.message, call_id=wanted.call_id, by=wanted.by)
        return api.json_body({"reply": said, "revision": session.revision})

    async def verify(self, request: Request) -> Response:
        wanted = api.read_body(request, Verification)
        served, session = await self._opened(request, include_closed=True)
        response = None if wanted.response is None else checked_response({"response": wanted.response})
        verdict = await served.guard_user_code("verify", session.verify(response, by=wanted.by))
        return api.json_body({"verdict": vars(verdict), "revision": session.revision})

    async def edit(self, request: Request) -> Response:
        wanted, (served, session) = api.read_body(request, StateEdit), await self._opened(request)
        await _edited(served, session.edit(wanted.changes, by=wanted.by, reason=wanted.reason))
        return await self._head(session.id)

    async def fork(self, request: Request) -> Response:
        wanted, (served, session) = api.read_body(request, NewForks), await self._opened(request, include_closed=True)
        edit = None if wanted.edit is None else Edit(wanted.edit.changes, wanted.edit.by, wanted.edit.reason)
        with await served.count.admit(wanted.n):
            work = session.fork(wanted.at, n=wanted.n, pending=wanted.pending, edit=edit, by=wanted.by)
            forks = await _edited(served, work)
        for _ in forks:
            served.metrics.created(served.name)
        return api.json_body({"sessions": [self._forked(served, fork.id) for fork in forks]})

    def _forked(self, served: ServedEnvironment, session: str) -> dict[str, str]:
        return {"id": session, **({"token": served.signer.sign(session).decode()} if self.gives_tokens else {})}

    async def rewind(self, request: Request) -> Response:
        wanted, (_, session) = api.read_body(request, Rewind), await self._opened(request)
        await session.rewind(wanted.to, by=wanted.by)
        return await self._head(session.id)

    async def undo(self, request: Request) -> Response:
        wanted, (_, session) = api.read_body(request, Steps), await self._opened(request)
        steps = await session.undo(wanted.steps, by=wanted.by)
        return api.json_body({"steps": steps, "revision": session.revision})

    async def redo(self, request: Request) -> Response:
        wanted, (_, session) = api.read_body(request, Steps), await self._opened(request)
        steps = await session.redo(wanted.steps, by=wanted.by)
        return api.json_body({"steps": steps, "revision": session.revision})

    async def checkpoint(self, request: Request) -> Response:
        wanted, (_, session) = api.read_body(request, NewCheckpoint), await self._opened(request)
        made = await session.checkpoint(wanted.name, by=wanted.by)
        return api.json_body({"name": made.name, "revision": made.revision})

    async def answer(self, request: Request) -> Response:
        """Answer the question of an agent that waits."""
        wanted, (_, session) = api.read_body(request, Answer), await self._opened(request)
        answered = session.agent.answer(wanted.input, user=wanted.user, by=wanted.by, to=wanted.to)
        return api.agent_status(await answered)

    async def cancel(self, request: Request) -> Response:
        """Cancel the work of an agent."""
        wanted, (_, session) = api.read_body(request, Cancellation), await self._opened(request)
        return api.agent_status(await session.agent.cancel(wanted.reason, by=wanted.by))

    async def close(self, request: Request) -> Response:
        wanted, (served, session) = api.read_body(request, Action), await self._opened(request, include_closed=True)
        await served.close(session, by=wanted.by)
        return await self._head(session.id)

    async def delete(self, request: Request) -> Response:
        api.read_query(request, api.Nothing)
        services, session = self.services, request.path_params["session"]
        head = await services.store.head(session)
        await services.store.delete(session)
        if head.status(services.now()) == "live":
            services.count.remove()
        for served in services.session_environments.values():
            served.sessions.forget(session)
        return api.json_body({"deleted": session})

    async def _opened(
        self, request: Request, *, include_closed: bool = False
    ) -> tuple[ServedEnvironment, Session[Any]]:
        session = request.path_params["session"]
        served = await self.services.environment_of(session)
        return served, await served.sessions.open(session, include_closed=include_closed)

    async def _head(self, session: str) -> Response:
        return api.json_body(head_data(await self.services.store.head(session), self.services.now()))


async def _edited(served: ServedEnvironment, work: Awaitable[Any]) -> Any:
    """Await an edit. What is wrong with it is told by its place."""
    try:
        return await served.guard_user_code("edit", work)
    except InvalidState as error:
        raise InvalidArguments(str(error), {format_path(error.path) or "state": str(error)}) from error
