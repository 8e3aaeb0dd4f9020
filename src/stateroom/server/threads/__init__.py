"""Threads over HTTP: conversations that clients go on with, each by the token of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from stateroom.agent import OnItems, Thread, Threads
from stateroom.errors import Conflict, NotFound, Unauthorized
from stateroom.server.admin.access import refusal
from stateroom.server.faults import fault, wrong_field, wrong_method
from stateroom.server.hosted import Hosted
from stateroom.server.http import Disconnected, Receive, Reply, Request, Scope, Send, send_reply
from stateroom.server.parameters import Nothing, cursor_of, parse, read_cursor, steps
from stateroom.server.threads.asked import NewThread, ThreadCancel, ThreadFork, ThreadList, ThreadMessage, ThreadPart
from stateroom.server.threads.streaming import Streaming
from stateroom.server.tokens import Signer
from stateroom.state import to_json

if TYPE_CHECKING:
    from stateroom.server.app import Application

PURPOSE = "/threads"
"""What thread tokens are signed for. No environment has this name: a session's token is worth nothing here."""


class OneThread(msgspec.Struct, frozen=True):
    """The thread that a request is about, which it has the token of."""

    hosted: Hosted
    id: str

    @property
    def threads(self) -> Threads:
        return Threads(self.hosted.sessions)


Endpoint = Callable[[Request, OneThread], Awaitable[Reply | Streaming]]
"""Answers a request about a thread."""


class ThreadsAPI:
    """Answers below `/threads`."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.signer = Signer(app.options.secrets, PURPOSE, app.options.ttl, app.now)
        self._endpoints: dict[str, dict[str, Endpoint]] = {
            "": {"GET": self.show, "DELETE": self.delete},
            "items": {"GET": self.items},
            "messages": {"POST": self.messages},
            "run": {"POST": self.run},
            "fork": {"POST": self.fork},
            "cancel": {"POST": self.cancel},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = await self._reply(Request(scope, receive, self.app.limits.body))
        if isinstance(reply, Streaming):
            await reply.send(send)
        elif reply is not None:
            await send_reply(scope, send, reply)

    async def _reply(self, request: Request) -> Reply | Streaming | None:
        """The reply to a request; none if the client has gone."""
        try:
            reply = await self._answer(request)
            return await reply.start() or reply if isinstance(reply, Streaming) else reply
        except Disconnected:
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            return fault(error, f"{request.scope['method']} {request.scope['path']}")

    async def _answer(self, request: Request) -> Reply | Streaming:
        path = request.scope["path"]
        method = "GET" if request.scope["method"] == "HEAD" else request.scope["method"]
        match steps(request.scope):
            case []:
                if method == "POST":
                    return await self.create(request)
                return await self.list(request) if method == "GET" else wrong_method(path, ("GET", "POST"))
            case [thread, *rest] if thread and "" not in rest:
                endpoints = self._endpoints.get("/".join(rest), {})
                if method in endpoints:
                    return await endpoints[method](request, self._known(request, thread))
                if endpoints:
                    return wrong_method(path, endpoints)
        raise NotFound(f"there is nothing at {path}; threads are at /threads")

    # Tokens.

    def _known(self, request: Request, thread: str) -> OneThread:
        """The thread of a path, if the request comes with its token."""
        given = request.bearer
        if given is None:
            raise Unauthorized("there is no bearer token: send the thread's token as Authorization: Bearer TOKEN")
        subject, token = self.signer.read(given)
        environment, _, known = subject.partition("/")
        if known != thread:
            raise Unauthorized("this is the token of another thread")
        self.app.keys.admit(request, token)
        return OneThread(self._hosted(environment), thread)

    def _hosted(self, environment: str) -> Hosted:
        hosted = self.app.kept.get(environment)
        if hosted is None or hosted.stateless:
            kept = ", ".join(name for name, one in self.app.kept.items() if not one.stateless)
            raise wrong_field("environment", f"there are no threads of {environment!r:.200} here; there are of: {kept}")
        return hosted

    def _told(self, thread: Thread, request: Request) -> dict[str, Any]:
        """A thread as JSON data, with a token for it from now on."""
        token = self.signer.sign(f"{thread.environment}/{thread.id}", request.key).decode()
        return {**msgspec.to_builtins(thread), "token": token}

    # All threads.

    async def create(self, request: Request) -> Reply:
        """A new thread, and its token."""
        self._refuse_with_session(request)
        self.app.keys.admit(request, None)
        wanted = parse(NewThread, await request.json(), strict=True)
        hosted = self._hosted(wanted.environment)
        self.app.keys.admit_session(request)
        async with hosted.census.admission():
            made = await Threads(hosted.sessions).create(
                wanted.user, metadata=wanted.metadata, instructions=wanted.instructions, task=wanted.task
            )
        hosted.figures.created(hosted.environment.name)
        return _reply(self._told(made, request))

    def _refuse_with_session(self, request: Request) -> None:
        """Raise if a session's cookie comes with a request, as with the calls of its model: that can get no other."""
        if any(hosted.unsaid_cookie(request) for hosted in self.app.hosted.values()):
            raise Conflict("", 0, "this client has a session already: send no cookie to create a thread")

    async def list(self, request: Request) -> Reply:
        """Threads, the newest first, for whoever runs the server."""
        refused = refusal(request, self.app.options.admin_token)
        if refused is not None:
            return refused
        wanted = parse(ThreadList, request.query)
        after = None if wanted.cursor is None else read_cursor(wanted.cursor)
        threads = Threads(self._hosted(wanted.environment).sessions)
        page = await threads.list(wanted.user, after=after, limit=wanted.limit)
        following = None if page.next is None else cursor_of(*page.next)
        return _reply({"threads": [self._told(thread, request) for thread in page.found], "next": following})

    # One thread.

    async def show(self, request: Request, one: OneThread) -> Reply:
        parse(Nothing, request.query)
        return _reply(self._told(await one.threads.get(one.id), request))

    async def items(self, request: Request, one: OneThread) -> Reply:
        wanted = parse(ThreadPart, request.query)
        found = await one.threads.items(one.id, after=wanted.after, limit=wanted.limit)
        return _reply(msgspec.to_builtins(found))

    async def messages(self, request: Request, one: OneThread) -> Reply:
        """Say something, or tell an agent that waits what it asked for."""
        wanted = parse(ThreadMessage, await request.json(), strict=True)
        message: Any = wanted.message
        stance = await one.threads.add(one.id, message, pin=wanted.pin)
        return _reply({"phase": stance.phase, "question": stance.question})

    async def run(self, request: Request, one: OneThread) -> Reply | Streaming:
        """Let the server's model answer."""
        parse(Nothing, await request.json(), strict=True)
        agent = self.app.answering.agent(one.hosted.environment.name, one.id)
        counted = one.hosted.figures.of_runs(one.hosted.environment.name)

        async def run(on_items: OnItems | None = None) -> bytes:
            outcome, start = "error", perf_counter()
            try:
                done = await one.threads.run(one.id, agent, on_items=on_items)
                outcome = done.status
            finally:
                counted.called(outcome, perf_counter() - start)
            usage = None if done.usage is None else done.usage.plain()
            told = {"status": done.status, "reason": done.reason, "question": done.question, "usage": usage}
            return to_json(told if on_items else {"output": done.output, **told})

        if b"text/event-stream" in (request.header(b"accept") or b""):
            return Streaming(run, f"POST {request.scope['path']}")
        return Reply(200, await run())

    async def fork(self, request: Request, one: OneThread) -> Reply:
        wanted = parse(ThreadFork, await request.json(), strict=True)
        self.app.keys.admit_session(request)
        async with one.hosted.census.admission():
            made = await one.threads.fork(one.id, wanted.at)
        one.hosted.figures.created(one.hosted.environment.name)
        return _reply(self._told(made, request))

    async def cancel(self, request: Request, one: OneThread) -> Reply:
        wanted = parse(ThreadCancel, await request.json(), strict=True)
        stance = await one.threads.cancel(one.id, wanted.reason)
        return _reply({"phase": stance.phase, "question": stance.question})

    async def delete(self, request: Request, one: OneThread) -> Reply:
        parse(Nothing, request.query)
        live = (await self.app.store.head(one.id)).status(self.app.now()) == "live"
        await one.threads.delete(one.id)
        if live:
            one.hosted.census.leave()
        return _reply({"deleted": one.id})


def _reply(value: Any) -> Reply:
    return Reply(200, to_json(value))
