"""What the endpoints behind the router share: parameters, JSON, cursors and server-sent events."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stateroom.errors import InvalidArguments
from stateroom.server.asgi import REQUEST
from stateroom.server.request import HTTPRequest, Receive, Scope, Send, wrong_field
from stateroom.server.response import Endpoint, HTTPResponse
from stateroom.session import AgentStatus
from stateroom.state import to_json

HEARTBEAT = 15.0
"""Seconds between two comments in a stream, so that no proxy takes a silent stream for dead."""

# Routes.


class IdConvertor(Convertor[str]):
    """A session's id in a path: any text, with a slash as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("id", IdConvertor())

RouteEndpoint = Callable[[Request], Awaitable[Response]]


class MethodRoute(Route):
    """A path, and what answers each method there."""

    def __init__(self, path: str, endpoints: Mapping[str, RouteEndpoint]) -> None:
        self.endpoints = endpoints
        super().__init__(path, self._respond, methods=[*endpoints])

    async def _respond(self, request: Request) -> Response:
        return await self.endpoints["GET" if request.method == "HEAD" else request.method](request)


def route(path: str, **endpoints: RouteEndpoint) -> MethodRoute:
    """A path, and what answers each method there."""
    return MethodRoute(path, endpoints)


def http_request(request: Request) -> HTTPRequest:
    """The same request as the wire protocol's endpoints see it."""
    return request.scope[REQUEST]  # type: ignore[no-any-return]


def starlette_response(response: HTTPResponse) -> Response:
    """The same response for Starlette."""
    made = Response(response.body, response.status)
    made.raw_headers += [(b"content-type", response.content_type), *response.headers]
    return made


def behind_router(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint of the wire protocol behind the router."""

    async def call(request: Request) -> Response:
        return starlette_response(await endpoint(http_request(request)))

    return call


def allowed_methods(error: HTTPException) -> list[str]:
    """The methods that a path answers, from the router's error about another one."""
    return sorted({*(error.headers or {})["Allow"].split(", ")} - {"HEAD"})


def json_body(value: Any) -> Response:
    """A value as JSON, with status 200."""
    return Response(to_json(value), media_type="application/json")


def agent_status(status: AgentStatus) -> Response:
    """The status of an agent, as JSON."""
    return json_body({"phase": status.phase, "question": status.question})


# Parameters.


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes 2.0 for 2, which JSON Schema does not tell apart."""
RevisionNumber = Annotated[int, Field(ge=1, le=2**53), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=200)]
_LATIN = "\u00a1-\u00ac\u00ae-\u024f"
User = Annotated[str, Field(min_length=1, max_length=200, pattern=f"^([ -9;-~{_LATIN}]|:+[!-9;-~{_LATIN}])*:*$")]
"""A user who speaks in a session: of Latin letters and other printable characters, without a colon before a space."""
RevisionOrName = RevisionNumber | Name
"""A revision, or the name of a checkpoint."""
After = Annotated[int, Field(ge=0, le=2**53), WHOLE]
Amount = Annotated[int, Field(ge=1, le=1000), WHOLE]
Text = Annotated[str, Field(max_length=10_000)]


class Parameters(BaseModel):
    """Parameters of a request; others are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Nothing(Parameters):
    """For requests without parameters."""


P = TypeVar("P", bound=Parameters)
T = TypeVar("T")


def read_query(request: Request, parameters: type[P]) -> P:
    """The parameters in a request's URL."""
    return parse(parameters, dict(request.query_params))


def read_body(request: Request, parameters: type[P]) -> P:
    """The parameters in a request's body."""
    return parse(parameters, http_request(request).json(), strict=True)


def parse(parameters: type[P], given: dict[str, Any], name: str | None = None, *, strict: bool = False) -> P:
    """Validate the parameters of a request; `name` is the client's name for a single one."""
    try:
        return parameters.model_validate(given, strict=strict)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        fields = {name or str(one["loc"][0]): one["msg"] for one in reversed(found)}  # of a union, the first problem
        raise InvalidArguments("; ".join(f"{field}: {said}" for field, said in fields.items()), fields) from None


def cursor_of(*place: float | str) -> str:
    """The cursor of a page: the place of its last session in the list, such as its creation time and id."""
    return urlsafe_b64encode(to_json(place)).decode()


def read_cursor(cursor: str, kind: type[T]) -> T:
    """The place in a cursor."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor), type=kind)
    except ValueError:
        raise wrong_field("cursor", "should be the `next` of the page before") from None


# Server-sent events.


def event(kind: str, data: bytes, position: str | None = None) -> ServerSentEvent:
    """An event with JSON data; clients that reconnect send the position of the last one."""
    return ServerSentEvent(data.decode(), event=kind, id=position, sep="\n")


class EventStream(EventSourceResponse):
    """A response that sends events as they occur.

    `work` is the task that makes them. It is not ended when the client disconnects: the request is in flight until it
    is done. A server that stops lets a stream end by itself, within its own limit for requests in flight.
    """

    def __init__(self, events: AsyncIterator[ServerSentEvent], work: asyncio.Task[None] | None = None) -> None:
        super().__init__(
            events,
            headers={"content-type": "text/event-stream"},
            ping=HEARTBEAT,
            ping_message_factory=lambda: ServerSentEvent(comment="still here", sep="\n"),
            shutdown_grace_period=inf,
        )
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"connection"]  # up to the protocol
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
            if self._work is not None:
                await self._work
        finally:
            if self._work is not None:
                self._work.cancel()
                with suppress(asyncio.CancelledError):
                    await self._work
