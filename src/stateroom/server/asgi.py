"""The ASGI application under every server: the checks and counts that each request passes.

Endpoints that must be fast are called directly. All others are behind a Starlette router, which costs as much as a
tool call.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response

from stateroom.errors import Busy, StateroomError
from stateroom.server.access import AllowedHosts
from stateroom.server.http import (
    ASGIApp,
    Disconnected,
    Endpoint,
    HTTPRequest,
    HTTPResponse,
    Message,
    Receive,
    Scope,
    Send,
    send_response,
    starlette_response,
)
from stateroom.server.options import Limits
from stateroom.server.tokens import SessionCookies
from stateroom.state import to_json

logger = logging.getLogger("stateroom.access")

SERVER = "stateroom.server"
"""The key of the server's state with the `ServerState`."""

SEND_WHOLE = "stateroom.send_whole"
"""The key of a scope with our own protocol's shorter way to send a whole response."""

BODY = "stateroom.body"
"""The key of a scope with the whole body, if our own protocol has it before the application runs."""

REQUEST = "stateroom.request"
"""The key of a scope, below the router, with the `HTTPRequest`."""

PROBES = frozenset({"/", "/health", "/ready"})
"""Paths that are answered however many requests are in flight: their clients decide whether a busy server lives."""

ROLLOUT = re.compile(r"/ng-rollout/([A-Za-z0-9][A-Za-z0-9._-]*)(?=/)")
"""A prefix by which clients distinguish their rollouts."""

MAX_PATH_CHARACTERS = 1000
"""Characters of a path in a log line, which must be short enough to be written at once: other processes write too."""


class ServerState(NamedTuple):
    """The application's state for the protocol."""

    limits: Limits
    stopping: asyncio.Event
    access_log: AccessLog | None
    refuse_head: ASGIApp
    """Answers requests whose path and headers are too large."""


class ASGIApplication(ABC):
    """Reads requests, refuses those over a limit or for another server, and responds to all others."""

    def __init__(self, limits: Limits, hosts: Sequence[str] | None) -> None:
        self.limits = limits
        self.hosts = None if hosts is None else AllowedHosts(hosts)
        self.endpoints: dict[str, Endpoint] = {}
        """The endpoints that answer a POST without the router, by path."""
        self.cookies: list[SessionCookies] = []
        """The session cookies that go back with each response."""
        self.access_log: AccessLog | None = None
        self.count_request: Callable[[str, str, int], None] | None = None
        """Counts a request by its method, path and status, when it gets a response."""
        self.in_flight = 0
        """Requests that are being answered."""
        self.stopping = asyncio.Event()
        """Set when the server begins to stop: streams without an end must end."""

    router: ASGIApp
    """Answers all other requests; set by `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Get ready to serve."""

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; requests in flight have ended."""

    @abstractmethod
    def response_to(self, error: Exception, what: str) -> HTTPResponse:
        """The response to a request that failed; `what` names the request in the log."""

    @abstractmethod
    def error_response(self, status: int, code: str, message: str) -> HTTPResponse:
        """The response to a request that is refused before any endpoint sees it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = HTTPRequest(scope, receive, self.limits.max_body)
        path = scope["path"]
        if path.startswith("/ng-rollout/"):
            path = ROLLOUT.sub("", path, count=1)
        endpoint = self.endpoints.get(path) if scope["method"] == "POST" else None
        routed = False
        try:
            if path not in PROBES:
                hosts, headers = self.hosts, request.headers
                if hosts is not None and (b"origin" in headers or headers.get(b"host") not in hosts.known):
                    hosts.check(request)
                body = scope.get(BODY)
                if body is None or endpoint is None or len(body) > self.limits.max_body:
                    await request.read()
                else:
                    request.body = body
                if self.in_flight >= self.limits.max_calls:  # counted when it is whole: a slow client keeps nobody out
                    raise Busy(f"{self.limits.max_calls} requests are already in flight; try again in a second")
            self.in_flight += 1
            try:
                if endpoint is None:
                    routed = True
                    await self._route(request, path, send)
                    return
                response = await endpoint(request)
            finally:
                self.in_flight -= 1
        except Disconnected:
            return
        except Exception as error:
            if routed:  # the router answers errors itself, until a response has begun
                raise
            response = self.response_to(error, f"{scope['method']} {path}")
        if self.count_request is not None:
            self.count_request(scope["method"], path, response.status)
        cookies: tuple[bytes, ...] = () if request.set_cookie is None else (request.set_cookie,)
        if request.cookies and len(cookies) < len(self.cookies):
            cookies = self._cookies(request)
        send_whole = scope.pop(SEND_WHOLE, None)  # it refers to the scope, and cycles are slow to be freed
        if send_whole is None or not send_whole(response, cookies):
            await send_response(send, response, cookies)

    def with_errors(self, router: ASGIApp) -> ASGIApp:
        """A router whose errors get responses."""
        return ExceptionMiddleware(router, handlers={HTTPException: self._wrong_method, Exception: self._failed})

    async def _failed(self, request: Request, error: Exception) -> Response:
        return starlette_response(self.response_to(error, f"{request.method} {unquote(request.scope['path'])}"))

    async def _wrong_method(self, request: Request, error: Exception) -> Response:
        """The response to a method that a path does not answer, the only error of a router's own."""
        assert isinstance(error, HTTPException)
        methods = sorted({*(error.headers or {})["Allow"].split(", ")} - {"HEAD"})
        message = f"{unquote(request.scope['path'])} answers {' and '.join(methods)} only"
        response = starlette_response(self.error_response(405, "method_not_allowed", message))
        response.headers["allow"] = ", ".join(methods)
        return response

    async def _route(self, request: HTTPRequest, path: str, send: Send) -> None:
        """Let the router answer. It sees the path as it was sent: a session's id may hold a slash, as %2F."""
        scope = request.scope
        scope.pop(SEND_WHOLE, None)
        raw = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
        inner = {**scope, REQUEST: request, "app": self, "path": ROLLOUT.sub("", raw, count=1), "root_path": ""}

        async def send_with_cookies(message: Message) -> None:
            if message["type"] == "http.response.start":
                if self.count_request is not None:
                    self.count_request(scope["method"], path, message["status"])
                cookies = [(b"set-cookie", cookie) for cookie in self._cookies(request)]
                message["headers"] = [*message.get("headers", ()), *cookies]
            await send(message)

        await self.router(inner, request.replayed(), send_with_cookies)

    def _cookies(self, request: HTTPRequest) -> tuple[bytes, ...]:
        """The cookies of all sessions that came with a request, whatever its path.

        A client may keep only the cookies of the last response. With one response without them, which a model may be
        able to cause, the client could seed another session.
        """
        own = () if request.set_cookie is None else (request.set_cookie,)
        if not request.cookies:
            return own
        others = [cookies.missing(request) for cookies in self.cookies]
        return (*own, *(cookie for cookie in others if cookie is not None))

    async def refuse_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path and headers are too large."""
        request = HTTPRequest(scope, receive, self.limits.max_body)
        scope.pop(SEND_WHOLE, None)
        message = f"the path and headers are larger than {self.limits.max_head:,} bytes"
        await send_response(send, self.error_response(431, "head_too_large", message), self._cookies(request))

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return  # a WebSocket, for example, is refused
        await receive()
        try:
            await self.start()
        except StateroomError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        if "state" in scope:
            scope["state"][SERVER] = ServerState(self.limits, self.stopping, self.access_log, self.refuse_head)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


class AccessLog:
    """Writes a line for each request that got a response, when the response has ended.

    Headers, cookies and the query are left out, because they hold tokens and keys.
    """

    def __init__(self, environment_of: Callable[[str, str], str | None], *, as_json: bool) -> None:
        self._environment_of = environment_of
        self._as_json = as_json

    async def around(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an application answer a request, and write its line."""
        status, size, start = 0, 0, perf_counter()

        async def send_noted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        scope.pop(SEND_WHOLE, None)  # so that every response is sent here
        try:
            await app(scope, receive, send_noted)
        finally:
            if status:
                self.write(scope, status, size, perf_counter() - start)

    def write(self, scope: Mapping[str, Any], status: int, size: int, seconds: float) -> None:
        """Write the line of a request; of a bad one even the method may be unknown."""
        client, method, path = scope["client"], scope.get("method"), scope.get("raw_path", b"").decode("latin-1")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0] if client else None,
            "method": method,
            "path": path if len(path) <= MAX_PATH_CHARACTERS else f"{path[:MAX_PATH_CHARACTERS]}...",
            "status": status,
            "bytes": size,
            "seconds": round(seconds, 6),
            "environment": self._environment_of(method, scope["path"]) if method and path else None,
        }
        if self._as_json:
            logger.info(to_json(line).decode())
        else:
            logger.info(" ".join("-" if value in (None, "") else str(value) for value in line.values()))
