"""The ASGI application: finds the endpoint of a request, and sends what it replies.

It stands directly on ASGI. A framework's router and middleware would cost more than a tool call does.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from msgspec import structs

from stateroom.agent import ThreadEnvironment
from stateroom.environment import RESERVED, Environment
from stateroom.errors import Busy, DefinitionError, NotFound, StateroomError
from stateroom.server.admin import Admin
from stateroom.server.census import Census
from stateroom.server.description import Description
from stateroom.server.faults import error_reply, fault, wrong_method
from stateroom.server.gymnasium import Gymnasium
from stateroom.server.hosted import Endpoint, Hosted
from stateroom.server.hosts import Hosts
from stateroom.server.http import (
    ACCESS_LOG,
    LIMITS,
    REPLY,
    STOPPING,
    TOO_LARGE,
    Disconnected,
    InFlight,
    Message,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    send_reply,
)
from stateroom.server.keys import Keys
from stateroom.server.mcp import MCP
from stateroom.server.monitoring.access_log import AccessLog
from stateroom.server.monitoring.measured import MeasuredStore
from stateroom.server.monitoring.metrics import Figures
from stateroom.server.options import Options
from stateroom.server.threads import ThreadsAPI
from stateroom.server.threads.answering import Answering
from stateroom.server.tokens import Signer
from stateroom.server.upkeep import Upkeep
from stateroom.session import Sessions
from stateroom.store import Store, open_store

if TYPE_CHECKING:
    from stateroom.server.monitoring.spans import Tracing

logger = logging.getLogger(__name__)

_ROLLOUT = re.compile(r"/ng-rollout/[A-Za-z0-9][A-Za-z0-9._-]*(?=/)")
"""A prefix by which clients tell their rollouts apart in logs."""

PROBES = frozenset({"/", "/health", "/ready"})
"""Paths that are answered however many requests are in flight: what asks there decides whether a busy server lives."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")

Mount = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application of its own, below a path."""


class Application:
    """One or more environments, served from one store."""

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        options: Options,
        *,
        now: Callable[[], float] = time.time,
        tracing: Tracing | None = None,
    ) -> None:
        self.environments = environments
        self.options = options
        self.limits = options.limits
        self._hosts = None if options.hosts is None else Hosts(options.hosts)
        self.now = now
        self.keys = Keys(options.keys, now, options.figures)
        self._all = (*environments, ThreadEnvironment())
        self.figures = Figures({each.name: each.tools for each in self._all}, options.figures)
        self.tracing = tracing
        self.hosted: dict[str, Hosted] = {}
        self.kept: dict[str, Hosted] = {}
        """All whose sessions are kept here: those that are served, and plain threads."""
        self.answering = Answering(options, self._all)
        self.in_flight = InFlight(self.limits.calls)
        self.stopping = asyncio.Event()
        """Set when the server has begun to stop: what would go on for ever must end."""
        self._routes: dict[tuple[str, str], Endpoint] = {}
        self._owners: dict[str, str] = {}
        """The environments that routes belong to."""
        self._mounts: dict[str, Mount] = {"/admin": Admin(self), "/threads": ThreadsAPI(self)}
        self._resources = AsyncExitStack()
        self._store: Store | None = None
        self._check_names()

    def _check_names(self) -> None:
        names = [environment.name for environment in self.environments]
        for name in names:
            if not _NAME.fullmatch(name):
                raise DefinitionError(f"the name {name!r} cannot stand in a path: use letters, digits, _ and -")
            if names.count(name) > 1:
                raise DefinitionError(f"two of the environments are named {name!r}")
            if name == ThreadEnvironment.name:
                raise DefinitionError(f"the name {name!r} is that of plain threads: give the environment another")
            if len(names) > 1 and name in RESERVED:
                raise DefinitionError(f"the name {name!r} is one of the server's own: serve this environment alone")

    # Starting and stopping.

    async def start(self) -> None:
        """Open the store, and make ready to serve."""
        if self.tracing is not None:
            self._resources.push_async_callback(self.tracing.shutdown)  # when all else has ended
        opened = await self._resources.enter_async_context(open_store(self.options.store))
        self._store = store = self._watched(opened)
        self._resources.callback(setattr, self, "_store", None)
        self.census = Census(store, self.limits.sessions, self.now)
        await self._resources.enter_async_context(self.answering)
        self.kept = {environment.name: self._host(environment, store) for environment in self._all}
        for environment in self.environments:
            hosted = self.hosted[environment.name] = self.kept[environment.name]
            routes = hosted.routes() | Gymnasium(hosted).routes()
            self._routes |= routes
            self._owners |= {path: environment.name for _, path in [*routes, ("", f"{hosted.prefix}/mcp")]}
            mcp = self._mounts[f"{hosted.prefix}/mcp"] = MCP(hosted, self.limits.body)
            await self._resources.enter_async_context(mcp)
        self._routes |= {
            ("GET", "/"): self.root,
            ("GET", "/health"): self.health,
            ("GET", "/ready"): self.ready,
            ("GET", "/metrics"): self.metrics,
            **Description(list(self.hosted.values())).routes(),
        }
        sessions = [hosted.sessions for hosted in self.kept.values()]
        await self._resources.enter_async_context(Upkeep(sessions, self.census, self.figures, self.options.ttl))

    def _host(self, environment: Environment[Any, Any], store: Store) -> Hosted:
        """An environment with its sessions in the store."""
        made = Sessions[Any](
            environment,
            store,
            ttl=self.options.ttl,
            timeout=self.limits.seconds,
            max_state=self.limits.state,
            max_log=self.limits.log,
            now=self.now,
        )
        self._resources.push_async_callback(made.stop)
        signer = Signer(self.options.secrets, environment.name, self.options.ttl, self.now)
        prefix = f"/{environment.name}" if len(self.environments) > 1 else ""
        return Hosted(environment, made, signer, self.census, self.figures, prefix, self.keys, self.hosted)

    @property
    def store(self) -> Store:
        """The store, while the server runs."""
        if self._store is None:
            raise Busy("the server is starting, or stopping")
        return self._store

    def _watched(self, store: Store) -> Store:
        measured = MeasuredStore(store, self.figures)
        return measured if self.tracing is None else self.tracing.store(measured)

    async def stop(self) -> None:
        """Let go of everything; requests in flight have ended."""
        await self._resources.aclose()

    # Serving.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = Request(scope, receive, self.limits.body)
        path = scope["path"]
        if path.startswith("/ng-rollout/"):
            path = _ROLLOUT.sub("", path, count=1)
        method = scope["method"]
        endpoint = self._routes.get(("GET" if method == "HEAD" else method, path))
        try:
            if endpoint is not None and path in PROBES:
                reply = await endpoint(request)
            else:
                if self._hosts is not None and (refused := self._hosts.refusal(scope)) is not None:
                    raise refused
                await request.body()
                with self.in_flight:
                    if endpoint is not None:
                        reply = await endpoint(request)
                    elif (start := self._mounted(path)) is not None:
                        scope.pop(REPLY, None)  # it leads back to the scope, and such circles are slow to be freed
                        inner, replying = {**scope, "path": path}, self._with_cookies(request, send)
                        await self._mounts[start](inner, request.replayed(), replying)
                        return
                    else:
                        reply = await self._elsewhere(request, path)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = fault(error, f"{method} {path}")
        await send_reply(scope, send, self._complete(request, reply), request.set_cookie)

    def _mounted(self, path: str) -> str | None:
        """The start of a path below which something else answers."""
        return next((start for start in self._mounts if path == start or path.startswith(f"{start}/")), None)

    def place_of(self, method: str, path: str) -> tuple[str | None, str | None]:
        """The route that answers a request, and the environment that it belongs to; for traces."""
        path = _ROLLOUT.sub("", path, count=1)
        known = ("GET" if method == "HEAD" else method, path) in self._routes
        route = path if known else self._mounted(path)
        return route, self._owners.get(route or "")

    async def refuse_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is larger than it may be."""
        request = Request(scope, receive, self.limits.body)
        message = f"the path and headers are larger than {self.limits.head:,} bytes"
        await send_reply(scope, send, self._complete(request, error_reply(431, "head_too_large", message)))

    def _complete(self, request: Request, reply: Reply) -> Reply:
        """The reply, with the cookies of all sessions that came with the request, wherever it was sent to.

        A client may know only the cookies of the last reply: one reply without them, which a model may know how to
        bring about, and the client would be free to seed another session.
        """
        if not request.cookies or (request.set_cookie is not None and len(self.hosted) == 1):
            return reply
        cookies = self._unsaid_cookies(request)
        return structs.replace(reply, headers=(*reply.headers, *cookies)) if cookies else reply

    def _with_cookies(self, request: Request, send: Send) -> Send:
        """A way to send that adds the sessions' cookies to the reply."""
        cookies = self._unsaid_cookies(request)
        if not cookies:
            return send

        async def send_with_cookies(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *cookies]
            await send(message)

        return send_with_cookies

    def _unsaid_cookies(self, request: Request) -> list[tuple[bytes, bytes]]:
        found = [hosted.unsaid_cookie(request) for hosted in self.hosted.values()]
        return [(b"set-cookie", cookie) for cookie in found if cookie is not None]

    async def _elsewhere(self, request: Request, path: str) -> Reply:
        """The reply to a request that no endpoint is for."""
        allowed = [method for method, known in self._routes if known == path]
        hosted, rest = self._home_of(path)
        if allowed:
            return wrong_method(path, allowed)
        if hosted is None:
            raise NotFound(f"there is nothing at {path}; environments are at {', '.join(f'/{n}' for n in self.hosted)}")
        return await hosted.no_tool(request, rest)

    def _home_of(self, path: str) -> tuple[Hosted | None, str]:
        """The environment that a path belongs to, and the rest of the path."""
        if len(self.hosted) == 1:
            return next(iter(self.hosted.values())), path[1:]
        name, _, rest = path[1:].partition("/")
        return self.hosted.get(name), rest

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return  # a WebSocket, say: it is refused
        await receive()
        try:
            await self.start()
        except StateroomError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        if "state" in scope:
            told = {STOPPING: self.stopping, LIMITS: self.limits, TOO_LARGE: self.refuse_head}
            scope["state"] |= told  # for the protocol
            if self.options.access_log is not None:
                as_json = self.options.access_log == "json"
                scope["state"][ACCESS_LOG] = AccessLog(lambda *asked: self.place_of(*asked)[1], as_json=as_json)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def root(self, request: Request) -> Reply:
        return Reply(200, b'{"status":"ok"}')

    async def health(self, request: Request) -> Reply:
        """The process is there."""
        return Reply(200, b'{"status":"ok"}')

    async def ready(self, request: Request) -> Reply:
        """It can serve: the store answers."""
        if self.stopping.is_set():
            raise Busy("the server is stopping")
        await self.store.heads(limit=1)
        return Reply(200, b'{"status":"ok"}')

    async def metrics(self, request: Request) -> Reply:
        """The figures, for Prometheus."""
        text, content_type = self.figures.exposition(request.header(b"accept") or b"", self.census.live)
        return Reply(200, text, content_type)
