"""The endpoints of the admin API that change something: an operator acts in sessions by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from inspect import cleandoc
from typing import Any, TypeVar

import msgspec

from stateroom.errors import InvalidArguments, InvalidState, format_path
from stateroom.rollout import example_file, read_tasks
from stateroom.server import api
from stateroom.server.environment import ServedEnvironment, guard_user_code
from stateroom.server.http import wrong_field
from stateroom.server.operation import SLOW, Operation, delete, get, post
from stateroom.server.schemas import Schema, form_schema, with_tasks
from stateroom.server.services import Services
from stateroom.server.wire import checked_response
from stateroom.session import Checkpoint, Edit, Pending, Session, SessionSummary, Verdict
from stateroom.state import EditChange

T = TypeVar("T")

MAX_EXAMPLES = 100
"""Example rows of an environment that are listed."""

CHANGING = (409, 502, *SLOW)
"""Error statuses of an endpoint that changes something."""


# Parameters.


class Action(api.Parameters):
    by: api.Name | None = None
    """The person who acts, for the log."""


class SeedRequest(Action):
    environment: str
    row: dict[str, Any]
    """The task row."""
    owner: api.Text = ""


class ToolCall(Action):
    name: str
    arguments: dict[str, Any] = {}
    call_id: api.Name | None = None
    """Sending the same id again returns the recorded result, and runs nothing."""
    user: api.User | None = None
    """The user whose call it is, if the session has several."""


class Message(Action):
    message: str
    call_id: api.Name


class VerifyRequest(Action):
    response: dict[str, Any] | None = None
    """A Responses object; by default the session's conversation."""


class StateEdit(api.Parameters):
    changes: list[EditChange]
    by: api.Name
    reason: api.Text = ""


class NewForks(Action):
    at: api.RevisionOrName | None = None
    n: api.Amount = 1
    pending: Pending = "refuse"
    edit: StateEdit | None = None
    """An edit that each fork begins with; if it is invalid, no fork is created."""


class Rewind(Action):
    to: api.RevisionOrName


class Steps(Action):
    steps: api.Amount = 1


class NewCheckpoint(Action):
    name: api.Name


class AnswerRequest(Action):
    input: Any
    to: int | None = None
    """The agent's `said` in the entry of the question; a question can be answered only once."""
    user: api.User | None = None
    """The user who answers, if there are several."""


class Cancellation(Action):
    reason: api.Text = ""


# Replies.


class EnvironmentForm(msgspec.Struct, frozen=True):
    """An environment, with all that a form for its tasks, tools and states needs."""

    name: str
    description: str
    tools: list[dict[str, Any]]
    """In the form for a model, each with its `effect`."""
    replies: bool
    """Whether it has a user who answers the agent."""
    task_schema: Schema
    state_schema: Schema | None
    """None if it is stateless."""
    examples: list[dict[str, Any]]
    """Task rows."""
    model: bool
    """Whether a model can act in it here."""


class EnvironmentList(msgspec.Struct, frozen=True):
    environments: list[EnvironmentForm]


class CallReply(msgspec.Struct, frozen=True):
    ok: bool
    output: Any
    """The result for a model, also of a failed call."""
    revision: int


class UserAnswer(msgspec.Struct, frozen=True):
    reply: str | None
    """None when the conversation is over."""
    revision: int


class VerdictReply(msgspec.Struct, frozen=True):
    verdict: Verdict
    revision: int


class Fork(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    token: str | None = None


class ForkList(msgspec.Struct, frozen=True):
    sessions: list[Fork]


class StepsReply(msgspec.Struct, frozen=True):
    steps: int
    """The number of steps undone or redone."""
    revision: int


class AdminActions:
    """The endpoints below `/admin` that act in sessions. `models` names the environments in which a model can act."""

    def __init__(self, services: Services, models: Collection[str], *, gives_tokens: bool) -> None:
        self.services = services
        self.models = models
        self.gives_tokens = gives_tokens
        self._forms: dict[str, EnvironmentForm] = {}
        """Those that were asked for, by name."""

    def operations(self) -> list[Operation]:
        """The endpoints."""
        session = "/sessions/{session:id}"
        actions = (self.call, self.reply, self.verify, self.edit, self.fork, self.rewind, self.undo, self.redo)
        return [
            get("/environments", self.environments),
            post("/sessions", self.seed, errors=CHANGING, detail=self._typed_session),
            delete(session, self.delete),
            *(
                post(f"{session}/{action.__name__}", action, errors=CHANGING)
                for action in (*actions, self.checkpoint, self.answer, self.cancel, self.close)
            ),
        ]

    def _typed_session(self) -> Any:
        served = self.services.environments.values()
        return with_tasks(SeedRequest, "row", [one.environment for one in served if not one.stateless])

    async def environments(self) -> EnvironmentList:
        """List the served environments, with all that a form for their tasks, tools and states needs."""
        served, known = self.services.environments, self._forms
        for name in served.keys() - known.keys():
            known[name] = await asyncio.to_thread(self._form, served[name])
        return EnvironmentList([known[name] for name in served])

    def _form(self, served: ServedEnvironment) -> EnvironmentForm:
        environment = served.environment
        examples = example_file(type(environment))
        return EnvironmentForm(
            name=served.name,
            description=cleandoc(type(environment).__doc__ or ""),
            tools=[{**tool.definition, "effect": tool.effect} for tool in environment.tools.values()],
            replies=environment.reply_tool is not None,
            task_schema=form_schema(environment.task_type),
            state_schema=None if environment.state_type is None else form_schema(environment.state_type),
            examples=[] if examples is None else [*read_tasks(examples, environment)[:MAX_EXAMPLES]],
            model=served.name in self.models,
        )

    async def seed(self, body: SeedRequest) -> SessionSummary:
        """Seed a session by hand."""
        served = self.services.session_environments.get(body.environment)
        if served is None or served.stateless:
            known = [each.name for each in self.services.session_environments.values() if not each.stateless]
            problem = "is not served here" if served is None else "is stateless, so its sessions are not stored"
            raise wrong_field("environment", f"{body.environment!r} {problem}; choose from {', '.join(known)}")
        async with served.creating():
            seeding = served.sessions.seed(body.row, owner=body.owner, by=body.by)
            session = await guard_user_code("seed", seeding)
        return await self._summary(session.id)

    async def call(self, session: str, body: ToolCall) -> CallReply:
        """Call a tool."""
        served = await self.services.environment_of(session)
        opened = await served.sessions.open(session)
        given = served.known_arguments(body.name, body.arguments)
        result = await opened.call(body.name, given, call_id=body.call_id, user=body.user, by=body.by)
        return CallReply(result.ok, result.content, opened.revision)

    async def reply(self, session: str, body: Message) -> UserAnswer:
        """Let the environment's user answer a message."""
        opened = await self._open(session)
        answer = await opened.reply(body.message, call_id=body.call_id, by=body.by)
        return UserAnswer(answer, opened.revision)

    async def verify(self, session: str, body: VerifyRequest) -> VerdictReply:
        """Verify the episode, which seals the session."""
        opened = await self._open(session, include_closed=True)
        response = None if body.response is None else checked_response({"response": body.response})
        verdict = await guard_user_code("verify", opened.verify(response, by=body.by))
        return VerdictReply(verdict, opened.revision)

    async def edit(self, session: str, body: StateEdit) -> SessionSummary:
        """Change the state by hand."""
        opened = await self._open(session)
        await _edited(opened.edit(body.changes, by=body.by, reason=body.reason))
        return await self._summary(session)

    async def fork(self, session: str, body: NewForks) -> ForkList:
        """Fork the session; with an edit, each fork begins with it."""
        served = await self.services.environment_of(session)
        opened = await served.sessions.open(session, include_closed=True)
        edit = None if body.edit is None else Edit(body.edit.changes, body.edit.by, body.edit.reason)
        async with served.creating(sessions=body.n):
            work = opened.fork(body.at, n=body.n, pending=body.pending, edit=edit, by=body.by)
            forks = await _edited(work)
        if not self.gives_tokens:
            return ForkList([Fork(fork.id) for fork in forks])
        return ForkList([Fork(fork.id, served.signer.sign(fork.id).decode()) for fork in forks])

    async def rewind(self, session: str, body: Rewind) -> SessionSummary:
        """Restore the state at a revision or a checkpoint."""
        opened = await self._open(session)
        await opened.rewind(body.to, by=body.by)
        return await self._summary(session)

    async def undo(self, session: str, body: Steps) -> StepsReply:
        """Undo the last steps."""
        opened = await self._open(session)
        return StepsReply(await opened.undo(body.steps, by=body.by), opened.revision)

    async def redo(self, session: str, body: Steps) -> StepsReply:
        """Redo the steps undone last."""
        opened = await self._open(session)
        return StepsReply(await opened.redo(body.steps, by=body.by), opened.revision)

    async def checkpoint(self, session: str, body: NewCheckpoint) -> Checkpoint:
        """Name the current state."""
        opened = await self._open(session)
        return await opened.checkpoint(body.name, by=body.by)

    async def answer(self, session: str, body: AnswerRequest) -> api.AgentReply:
        """Answer the question of an agent that waits."""
        opened = await self._open(session)
        return api.AgentReply.of(await opened.agent.answer(body.input, user=body.user, by=body.by, to=body.to))

    async def cancel(self, session: str, body: Cancellation) -> api.AgentReply:
        """Cancel the work of an agent."""
        opened = await self._open(session)
        return api.AgentReply.of(await opened.agent.cancel(body.reason, by=body.by))

    async def close(self, session: str, body: Action) -> SessionSummary:
        """Close the session."""
        served = await self.services.environment_of(session)
        opened = await served.sessions.open(session, include_closed=True)
        await served.close(opened, by=body.by)
        return await self._summary(session)

    async def delete(self, session: str) -> api.Deleted:
        """Delete a session at once."""
        services = self.services
        head = await services.store.head(session)
        await services.store.delete(session)
        if head.status(services.now()) == "live":
            services.count.remove()
        for served in services.session_environments.values():
            served.sessions.forget(session)
        return api.Deleted(session)

    async def _open(self, session: str, *, include_closed: bool = False) -> Session[Any]:
        served = await self.services.environment_of(session)
        return await served.sessions.open(session, include_closed=include_closed)

    async def _summary(self, session: str) -> SessionSummary:
        return SessionSummary.of(await self.services.store.head(session), self.services.now())


async def _edited(work: Awaitable[T]) -> T:
    """Await an edit. The place of what is wrong with it is the field of the error."""
    try:
        return await guard_user_code("edit", work)
    except InvalidState as error:
        raise InvalidArguments(str(error), {format_path(error.path) or "state": str(error)}) from error
