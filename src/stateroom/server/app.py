"""The ASGI application: finds the endpoint of a request, and sends what it replies.

It stands directly on ASGI. A framework's router and middleware would cost more than a tool call does.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import Busy, DefinitionError, NotFound, StateroomError, Unauthorized
from stateroom.server.admin import Admin
from stateroom.server.description import Description
from stateroom.server.faults import error_reply, fault
from stateroom.server.gymnasium import Gymnasium
from stateroom.server.hosted import Endpoint, Hosted
from stateroom.server.http import Disconnected, Receive, Reply, Request, Scope, Send, send_reply
from stateroom.server.mcp import MCP
from stateroom.server.metrics import Figures
from stateroom.server.options import Options
from stateroom.server.tokens import Signer
from stateroom.session import Sessions
from stateroom.store import Store, open_store

logger = logging.getLogger(__name__)

_ROLLOUT = re.compile(r"/ng-rollout/[A-Za-z0-9][A-Za-z0-9._-]*(?=/)")
"""A prefix by which clients tell their rollouts apart in logs."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")

Mount = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application of its own, below a path."""

SWEEPS_PER_LIFE = 10
LONGEST_PAUSE = 60.0
"""Expired sessions are removed ten times in the life of one, and once a minute at least."""


class Application:
    """One or more environments, served from one store."""

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        options: Options,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.environments = environments
        self.options = options
        self.limits = options.limits
        self.now = now
        self.figures = Figures()
        self.hosted: dict[str, Hosted] = {}
        self.in_flight = 0
        self.live = 0
        """About how many sessions are live: counted at each sweep, and by this process in between."""
        self._routes: dict[tuple[str, str], Endpoint] = {}
        self._mounts: dict[str, Mount] = {"/admin": Admin(self)}
        self._resources = AsyncExitStack()
        self._store: Store | None = None
        for environment in environments:
            if not _NAME.fullmatch(environment.name):
                raise DefinitionError(
                    f"the name {environment.name!r} cannot stand in a path: use letters, digits, _, -"
                )
        if len({environment.name for environment in environments}) < len(environments):
            raise DefinitionError("two environments have the same name")

    # Starting and stopping.

    async def start(self) -> None:
        """Open the store, and make ready to serve."""
        self._store = store = await self._resources.enter_async_context(open_store(self.options.store))
        self._resources.callback(setattr, self, "_store", None)
        for environment in self.environments:
            sessions = Sessions[Any](
                environment, store, ttl=self.options.ttl, timeout=self.limits.seconds, now=self.now
            )
            signer = Signer(self.options.secrets, environment.name, self.options.ttl, self.now)
            prefix = f"/{environment.name}" if len(self.environments) > 1 else ""
            hosted = Hosted(environment, sessions, signer, self.figures, prefix)
            self.hosted[environment.name] = hosted
            self._routes |= hosted.routes() | Gymnasium(hosted).routes()
            mcp = self._mounts[f"{prefix}/mcp"] = MCP(hosted)
            await self._resources.enter_async_context(mcp)
        self._routes |= {
            ("GET", "/"): self.root,
            ("GET", "/health"): self.health,
            ("GET", "/ready"): self.ready,
            ("GET", "/metrics"): self.metrics,
            **Description(list(self.hosted.values())).routes(),
        }
        sweeping = asyncio.create_task(self._sweep_for_ever())
        self._resources.push_async_callback(_stop, sweeping)

    async def stop(self) -> None:
        """Let go of everything; requests in flight have ended."""
        await self._resources.aclose()

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                for hosted in self.hosted.values():
                    await hosted.sessions.sweep()
            except StateroomError as error:
                logger.warning("cannot sweep just now: %s", error)
            await asyncio.sleep(min(self.options.ttl / SWEEPS_PER_LIFE, LONGEST_PAUSE))

    # Serving.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = Request(scope, receive, self.limits.body)
        path = scope["path"]
        if path.startswith("/ng-rollout/"):
            path = _ROLLOUT.sub("", path, count=1)
        endpoint = self._routes.get((scope["method"], path))
        if endpoint is None and (mount := self._mount_of(path)) is not None:
            await mount({**scope, "path": path}, receive, send)
            return
        self.in_flight += 1
        try:
            if self.in_flight > self.limits.calls:
                raise Busy(f"{self.limits.calls} requests are in flight already; try again in a second")
            reply = await (self._elsewhere(request, path) if endpoint is None else endpoint(request))
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = fault(error, f"{scope['method']} {path}")
        finally:
            self.in_flight -= 1
        await send_reply(send, reply, request.cookie)

    def _mount_of(self, path: str) -> Mount | None:
        """What answers all that lies below a path."""
        return next(
            (mount for start, mount in self._mounts.items() if path == start or path.startswith(f"{start}/")), None
        )

    async def _elsewhere(self, request: Request, path: str) -> Reply:
        """The reply to a request that no endpoint is for."""
        allowed = sorted(method for method, known in self._routes if known == path)
        hosted, rest = self._home_of(path)
        if allowed:
            with suppress(Unauthorized):
                if hosted is not None:
                    hosted.token_of(request)
            reply = error_reply(405, "method_not_allowed", f"{path} answers {' and '.join(allowed)} only")
            return Reply(reply.status, reply.body, headers=((b"allow", ", ".join(allowed).encode()),))
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
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def root(self, request: Request) -> Reply:
        for hosted in self.hosted.values():
            with suppress(Unauthorized):
                hosted.token_of(request)
        return Reply(200, b'{"status":"ok"}')

    async def health(self, request: Request) -> Reply:
        """The process is there."""
        return Reply(200, b'{"status":"ok"}')

    async def ready(self, request: Request) -> Reply:
        """It can serve: the store answers."""
        if self._store is None:
            raise Busy("the server is starting, or stopping")
        await self._store.heads(limit=1)
        return Reply(200, b'{"status":"ok"}')

    async def metrics(self, request: Request) -> Reply:
        """The figures, for Prometheus."""
        text, content_type = self.figures.exposition(request.header(b"accept") or b"", self.live)
        return Reply(200, text, content_type)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
