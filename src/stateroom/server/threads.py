"""Threads over HTTP: conversations that clients continue, each with its own token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import perf_counter
from typing import Annotated, Any, Literal, NotRequired

import msgspec
from pydantic import Field, with_config
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from typing_extensions import TypedDict

from stateroom.agent import OnItems, Thread, ThreadEnvironment, Threads
from stateroom.errors import Conflict, Unauthorized
from stateroom.model import Item
from stateroom.server import api
from stateroom.server.access import check_admin
from stateroom.server.agent import EnvironmentModels, agent_for
from stateroom.server.environment import ServedEnvironment
from stateroom.server.request import bearer_token, wrong_field
from stateroom.server.response import response_to
from stateroom.server.services import Services
from stateroom.server.tokens import Signer
from stateroom.state import to_json

PURPOSE = "/threads"
"""What thread tokens are signed for. No environment has this name, so a session's token is not valid here."""


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


# Endpoints.


class ThreadsAPI:
    """The endpoints of `/threads`."""

    def __init__(self, services: Services, models: EnvironmentModels) -> None:
        self.services = services
        self.models = models
        options = services.options
        self.signer = Signer(options.secrets, PURPOSE, options.ttl, services.now)

    def routes(self) -> list[BaseRoute]:
        thread = "/threads/{thread:id}"
        return [
            api.route("/threads", GET=self.list_threads, POST=self.create),
            api.route(thread, GET=self.show, DELETE=self.delete),
            api.route(f"{thread}/items", GET=self.items),
            api.route(f"{thread}/messages", POST=self.messages),
            api.route(f"{thread}/run", POST=self.run),
            api.route(f"{thread}/fork", POST=self.fork),
            api.route(f"{thread}/cancel", POST=self.cancel),
        ]

    def _known(self, request: Request) -> tuple[str, ServedEnvironment]:
        """The thread in the path and its environment, if the request has the thread's token."""
        thread, asked = request.path_params["thread"], api.http_request(request)
        given = bearer_token(asked.headers)
        if given is None:
            raise Unauthorized("there is no bearer token: send the thread's token as Authorization: Bearer TOKEN")
        subject, token = self.signer.read(given)
        environment, _, known = subject.partition("/")
        if known != thread:
            raise Unauthorized("this is the token of another thread")
        self.services.keys.admit(asked, token)
        return thread, self._served(environment)

    def _served(self, environment: str) -> ServedEnvironment:
        found = self.services.session_environments
        served = found.get(environment)
        if served is None or served.stateless:
            known = ", ".join(name for name, one in found.items() if not one.stateless)
            problem = f"there are no threads of {environment!r:.200} here; there are of: {known}"
            raise wrong_field("environment", problem)
        return served

    def _described(self, thread: Thread, request: Request) -> dict[str, Any]:
        """A thread as JSON data, with a new token."""
        token = self.signer.sign(f"{thread.environment}/{thread.id}", api.http_request(request).key).decode()
        return {**msgspec.to_builtins(thread), "token": token}

    # All threads.

    async def create(self, request: Request) -> Response:
        """A new thread, and its token."""
        asked = api.http_request(request)
        if any(served.cookies.missing(asked) for served in self.services.environments.values()):
            # A model's calls have its session's cookie, and it must not get more.
            raise Conflict("", 0, "this client has a session already: send no cookie to create a thread")
        self.services.keys.admit(asked, None)
        wanted = api.read_body(request, NewThread)
        served = self._served(wanted.environment)
        self.services.keys.admit_session(asked)
        with await served.count.admit():
            made = await Threads(served.sessions).create(
                wanted.user, metadata=wanted.metadata, instructions=wanted.instructions, task=wanted.task
            )
        served.metrics.created(served.name)
        return api.json_body(self._described(made, request))

    async def list_threads(self, request: Request) -> Response:
        """Threads, the newest first, for the operator of the server."""
        check_admin(api.http_request(request), self.services.options)
        wanted = api.read_query(request, ThreadList)
        after = None if wanted.cursor is None else api.read_cursor(wanted.cursor, tuple[float, str])
        threads = Threads(self._served(wanted.environment).sessions)
        page = await threads.list(wanted.user, after=after, limit=wanted.limit)
        cursor = None if page.next is None else api.cursor_of(*page.next)
        return api.json_body({"threads": [self._described(thread, request) for thread in page.threads], "next": cursor})

    # One thread.

    async def show(self, request: Request) -> Response:
        thread, served = self._known(request)
        api.read_query(request, api.Nothing)
        return api.json_body(self._described(await Threads(served.sessions).get(thread), request))

    async def items(self, request: Request) -> Response:
        thread, served = self._known(request)
        wanted = api.read_query(request, ThreadPart)
        found = await Threads(served.sessions).items(thread, after=wanted.after, limit=wanted.limit)
        return api.json_body(msgspec.to_builtins(found))

    async def messages(self, request: Request) -> Response:
        """Add a message, or answer the question of an agent that waits."""
        thread, served = self._known(request)
        wanted = api.read_body(request, ThreadMessage)
        message: Any = wanted.message
        status = await Threads(served.sessions).add(thread, message, user=wanted.user, pin=wanted.pin)
        return api.agent_status(status)

    async def run(self, request: Request) -> Response:
        """Let the server's model answer."""
        thread, served = self._known(request)
        api.read_body(request, api.Nothing)
        agent = agent_for(self.services, self.models.sources, served.name, thread)
        meter = served.metrics.runs(served.name)

        async def run(on_items: OnItems | None = None) -> bytes:
            outcome, start = "error", perf_counter()
            try:
                done = await Threads(served.sessions).run(thread, agent, on_items=on_items)
                outcome = done.status
            finally:
                meter.count(outcome, perf_counter() - start)
            usage = None if done.usage is None else done.usage.plain()
            served.metrics.tokens(served.name, usage or {})
            told = {"status": done.status, "reason": done.reason, "question": done.question, "usage": usage}
            return to_json(told if on_items else {"output": done.output, **told})

        if "text/event-stream" in request.headers.get("accept", ""):
            return await run_events(run, f"POST {request.url.path}")
        return Response(await run(), media_type="application/json")

    async def fork(self, request: Request) -> Response:
        thread, served = self._known(request)
        wanted = api.read_body(request, ThreadFork)
        self.services.keys.admit_session(api.http_request(request))
        with await served.count.admit():
            made = await Threads(served.sessions).fork(thread, wanted.at)
        served.metrics.created(served.name)
        return api.json_body(self._described(made, request))

    async def cancel(self, request: Request) -> Response:
        thread, served = self._known(request)
        wanted = api.read_body(request, ThreadCancel)
        return api.agent_status(await Threads(served.sessions).cancel(thread, wanted.reason))

    async def delete(self, request: Request) -> Response:
        thread, served = self._known(request)
        api.read_query(request, api.Nothing)
        live = (await self.services.store.head(thread)).status(self.services.now()) == "live"
        await Threads(served.sessions).delete(thread)
        if live:
            served.count.remove()
        return api.json_body({"deleted": thread})


async def run_events(run: Callable[[OnItems], Awaitable[bytes]], what: str) -> Response:
    """A run as events: one for each item as it comes, and one at the end.

    Raises the error of a run that fails before its first item. The run goes on when the client disconnects.
    """
    queue: asyncio.Queue[ServerSentEvent | None] = asyncio.Queue()
    started = False

    async def tell(items: Sequence[Item]) -> None:
        nonlocal started
        started = True
        for item in items:
            queue.put_nowait(api.event("item", to_json(item)))

    async def work() -> None:
        try:
            queue.put_nowait(api.event("end", await run(tell)))
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
        found = first
        while found is not None:
            yield found
            found = await queue.get()

    return api.EventStream(events(), task)
