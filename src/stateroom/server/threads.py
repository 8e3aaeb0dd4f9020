"""Threads over HTTP: conversations that clients continue, each with its own token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Self

import msgspec
from msgspec.structs import asdict
from pydantic import Field, with_config
from sse_starlette import ServerSentEvent
from typing_extensions import TypedDict

from stateroom.agent import ItemPage, OnItems, Thread, ThreadEnvironment, Threads, Trajectory, TurnStatus
from stateroom.environment import Environment
from stateroom.errors import Contradiction, Unauthorized
from stateroom.model import Item, ModelSource
from stateroom.server import api
from stateroom.server.access import check_admin
from stateroom.server.agent import agent_for
from stateroom.server.environment import ServedEnvironment
from stateroom.server.http import HTTPRequest, bearer_token, response_to, wrong_field
from stateroom.server.operation import ACTING, FOR_OPERATOR, SLOW, Operation, delete, get, post
from stateroom.server.schemas import with_environments, with_tasks
from stateroom.server.services import Services
from stateroom.server.tokens import Signer
from stateroom.state import to_json

PURPOSE = "/threads"
"""The purpose of thread tokens. No environment has this name, so a session's token is not valid here."""


# Parameters.


@with_config(extra="allow")
class MessagePart(TypedDict):
    """A part of a message, as in the Responses API."""

    type: str
    text: NotRequired[str]


@with_config(extra="allow")
class MessageItem(TypedDict):
    """A message, as in the Responses API."""

    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[MessagePart]
    name: NotRequired[api.User]
    """The user who says it, if the thread has several."""


class NewThread(api.Parameters):
    environment: str = ThreadEnvironment.name
    """The environment whose tools the thread has; by default it has none."""
    user: api.Name | None = None
    metadata: dict[str, Any] = {}
    instructions: str = ""
    """A system message at the start."""
    task: dict[str, Any] = {}
    """The task row from which the environment seeds its state."""


class ThreadList(api.Parameters):
    environment: str = ThreadEnvironment.name
    user: api.Name | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    cursor: str | None = None


class ThreadPart(api.Parameters):
    after: api.After = 0
    limit: api.Amount = 100


class ThreadMessage(api.Parameters):
    message: (
        Annotated[str, Field(min_length=1)]
        | MessageItem
        | Annotated[list[MessageItem], Field(min_length=1, max_length=1000)]
    )
    """A text of the user, a message, or several."""
    user: api.User | None = None
    """The user who says it, if the thread has several."""
    pin: bool = False
    """Whether the model always sees it, however long the conversation is."""


class ThreadFork(api.Parameters):
    at: api.RevisionOrName | None = None


class ThreadCancel(api.Parameters):
    reason: api.Text = ""


# Replies.


class ThreadReply(Thread, frozen=True, kw_only=True):
    """A thread, with its token."""

    token: str
    """The token to use the thread; it lives a day longer than a thread that is not used."""


class ThreadPageReply(msgspec.Struct, frozen=True):
    threads: list[ThreadReply]
    next: str | None
    """The `cursor` of the next page. A page may have fewer threads than its limit, and not be the last."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: TurnStatus
    reason: str | None
    """Why it is incomplete."""
    question: str | None
    """The question that waits for an answer."""
    usage: dict[str, Any] | None
    """The number of tokens, as far as the model reports it."""

    @classmethod
    def of(cls, done: Trajectory, **more: Any) -> Self:
        """The end of a run; `more` are the fields of a class that has more of them."""
        usage = None if done.usage is None else done.usage.plain()
        return cls(status=done.status, reason=done.reason, question=done.question, usage=usage, **more)


class ThreadRun(RunEnd, frozen=True, kw_only=True):
    output: list[Item]
    """New Responses items."""


# Endpoints.


class Caller(NamedTuple):
    """A client that has the token of a thread."""

    thread: str
    served: ServedEnvironment

    @property
    def threads(self) -> Threads:
        """The threads of the environment."""
        return Threads(self.served.sessions)


class ThreadsAPI:
    """The endpoints of `/threads`."""

    def __init__(self, services: Services, models: Mapping[str, ModelSource]) -> None:
        self.services = services
        self.models = models
        options = services.options
        self.signer = Signer(options.secrets, PURPOSE, options.ttl, services.now)

    def operations(self) -> list[Operation]:
        """The endpoints."""
        thread, detail = "/threads/{thread:id}", partial(with_tasks, NewThread, "task", self._environments())
        own: Any = {"admit": self._caller, "security": [{"thread": []}], "errors": ACTING}
        running = {**own, "errors": (502, *ACTING, *SLOW)}
        listed = with_environments(ThreadList, [one.name for one in self._environments()])
        return [
            post("/threads", self.create, admit=self._admit_newcomer, errors=(409, *SLOW), detail=detail),
            get("/threads", self.list_threads, name="list", query=listed, admit=self._admit_operator, **FOR_OPERATOR),
            get(thread, self.show, **own),
            delete(thread, self.delete, **own),
            get(f"{thread}/items", self.items, **own),
            post(f"{thread}/messages", self.messages, **own),
            post(f"{thread}/run", self.run, **running),
            post(f"{thread}/fork", self.fork, **own),
            post(f"{thread}/cancel", self.cancel, **own),
        ]

    def _environments(self) -> list[Environment[Any, Any]]:
        """The environments that can have threads."""
        return [one.environment for one in self.services.session_environments.values() if not one.stateless]

    def _caller(self, request: HTTPRequest, thread: str) -> Caller:
        """The client of the thread in the path, which has the thread's token."""
        given = bearer_token(request.headers)
        if given is None:
            raise Unauthorized("missing bearer token; send the thread's token as Authorization: Bearer TOKEN")
        subject, token = self.signer.read(given)
        environment, _, known = subject.partition("/")
        if known != thread:
            raise Unauthorized("this token belongs to another thread")
        self.services.keys.admit(request, token)
        return Caller(thread, self._served(environment))

    def _admit_newcomer(self, request: HTTPRequest) -> None:
        if any(served.cookies.missing(request) for served in self.services.environments.values()):
            # A model's calls have its session's cookie, and it must not get more.
            raise Contradiction("this client already has a session; to create a thread, send no cookie")
        self.services.keys.admit(request, None)

    def _admit_operator(self, request: HTTPRequest) -> None:
        check_admin(request, self.services.options)

    def _served(self, environment: str) -> ServedEnvironment:
        served = self.services.session_environments.get(environment)
        if served is None or served.stateless:
            known = ", ".join(one.name for one in self._environments())
            problem = f"the environment {environment!r:.200} cannot have threads here; choose from {known}"
            raise wrong_field("environment", problem)
        return served

    def _reply(self, thread: Thread, request: HTTPRequest) -> ThreadReply:
        """A thread with a new token."""
        token = self.signer.sign(f"{thread.environment}/{thread.id}", request.key).decode()
        return ThreadReply(**asdict(thread), token=token)

    # All threads.

    async def create(self, request: HTTPRequest, body: NewThread) -> ThreadReply:
        """Create a thread: a conversation that the server stores.

        By default it has no tools; with an `environment`, its tools act on the thread's state. All other requests need
        the `token` from the reply, as a bearer token.
        """
        served = self._served(body.environment)
        async with served.creating(request):
            made = await Threads(served.sessions).create(
                body.user, metadata=body.metadata, instructions=body.instructions, task=body.task
            )
        return self._reply(made, request)

    async def list_threads(self, request: HTTPRequest, query: ThreadList) -> ThreadPageReply:
        """List threads, newest first, for the operator of the server."""
        after = None if query.cursor is None else api.read_cursor(query.cursor, tuple[float, str])
        threads = Threads(self._served(query.environment).sessions)
        page = await threads.list(query.user, after=after, limit=query.limit)
        cursor = None if page.next is None else api.cursor_of(*page.next)
        return ThreadPageReply([self._reply(thread, request) for thread in page.threads], cursor)

    # One thread.

    async def show(self, request: HTTPRequest, caller: Caller, query: api.Nothing) -> ThreadReply:
        """Read the thread, with a fresh token."""
        return self._reply(await caller.threads.get(caller.thread), request)

    async def items(self, caller: Caller, query: ThreadPart) -> ItemPage:
        """Read the conversation."""
        return await caller.threads.items(caller.thread, after=query.after, limit=query.limit)

    async def messages(self, caller: Caller, body: ThreadMessage) -> api.AgentReply:
        """Add a message, or answer the question of an agent that waits."""
        message: Any = body.message
        return api.AgentReply.of(await caller.threads.add(caller.thread, message, user=body.user, pin=body.pin))

    async def run(self, request: HTTPRequest, caller: Caller, body: api.Nothing) -> ThreadRun | api.EventStream:
        """Let the server's model answer the new messages.

        With `Accept: text/event-stream`, each item is sent as an event, and the last event, `end`, has the rest of the
        reply; if the run fails after its first item, the last event is `error`. The run continues when the client
        disconnects. While a thread runs, another run gets 503.
        """
        served = caller.served
        agent = agent_for(self.services, self.models, served.name, caller.thread)
        meter = served.metrics.runs(served.name)

        async def run(on_items: OnItems | None = None) -> Trajectory:
            outcome, start = "error", perf_counter()
            try:
                done = await caller.threads.run(caller.thread, agent, on_items=on_items)
                outcome = done.status
            finally:
                meter.count(outcome, perf_counter() - start)
            served.metrics.tokens(served.name, {} if done.usage is None else done.usage.plain())
            return done

        async def end(on_items: OnItems) -> bytes:
            return to_json(RunEnd.of(await run(on_items)))

        if b"text/event-stream" in request.headers.get(b"accept", b""):
            return await run_events(end, f"POST {request.scope['path']}")
        done = await run()
        return ThreadRun.of(done, output=done.output)

    async def fork(self, request: HTTPRequest, caller: Caller, body: ThreadFork) -> ThreadReply:
        """Create a thread that continues this one, from its end or from a revision."""
        async with caller.served.creating(request):
            made = await caller.threads.fork(caller.thread, body.at)
        return self._reply(made, request)

    async def cancel(self, caller: Caller, body: ThreadCancel) -> api.AgentReply:
        """Cancel the work of the thread's agent."""
        return api.AgentReply.of(await caller.threads.cancel(caller.thread, body.reason))

    async def delete(self, caller: Caller) -> api.Deleted:
        """Remove the thread at once. Its forks stay."""
        live = (await self.services.store.head(caller.thread)).status(self.services.now()) == "live"
        await caller.threads.delete(caller.thread)
        if live:
            caller.served.count.remove()
        return api.Deleted(caller.thread)


async def run_events(run: Callable[[OnItems], Awaitable[bytes]], what: str) -> api.EventStream:
    """A run as events: one for each item as it comes, and one at the end.

    Raises the error of a run that fails before its first item. The run goes on when the client disconnects.
    """
    queue: asyncio.Queue[ServerSentEvent | None] = asyncio.Queue()
    started = False

    async def send(items: Sequence[Item]) -> None:
        nonlocal started
        started = True
        for item in items:
            queue.put_nowait(api.event("item", to_json(item)))

    async def work() -> None:
        try:
            queue.put_nowait(api.event("end", await run(send)))
        except Exception as error:
            if not started:
                raise
            queue.put_nowait(api.event("error", response_to(error, what).body))
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        first = await queue.get()
        if first is None:
            await task
    except asyncio.CancelledError:
        task.cancel()
        raise

    async def events() -> AsyncIterator[ServerSentEvent]:
        event = first
        while event is not None:
            yield event
            event = await queue.get()

    return api.EventStream(events(), task)
