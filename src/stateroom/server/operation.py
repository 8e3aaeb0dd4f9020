"""Endpoints, each declared once: its path, its input and output, and the function that answers.

The OpenAPI document is made of these declarations too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import getdoc
from typing import Any, get_type_hints
from urllib.parse import quote, unquote

from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stateroom.server.api import Nothing, parse
from stateroom.server.asgi import REQUEST
from stateroom.server.http import HTTPRequest, HTTPResponse, starlette_response
from stateroom.state import to_json

ALWAYS = (500, 503)
"""Error statuses of every endpoint."""
READING = (400, 413, 422)
"""Error statuses of an endpoint that reads a body."""
NAMING = (404, 410)
"""Error statuses of an endpoint whose path names something, such as a session."""
ACTING = (401, 409, 410)
"""Error statuses of an endpoint that acts in the client's session."""
SLOW = (504,)
"""Error statuses of an endpoint that runs an author's code."""

Security = Sequence[Mapping[str, Sequence[str]]]
"""The security schemes of which a request needs one; an empty one is a request without any."""

FOR_OPERATOR: Any = {"security": [{}, {"admin": []}], "errors": (401, 403)}
"""How endpoints of the server's operator are declared: without a token they answer on the server's own machine."""

_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")


class IdConvertor(Convertor[str]):
    """A session's id in a path: any text, with a slash as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("id", IdConvertor())


@dataclass(frozen=True)
class Operation:
    """An endpoint.

    Its function takes by name what it needs: parameters of the path, `query`, `body`, the `request`, and the `caller`
    that `admit` gives. Its annotations say how these are validated, and what the reply is. A function that takes no
    query or body refuses one, unless it looks at the whole request. Where it must be fast, it is an `Endpoint`, which
    reads the request and writes the response itself; then the types are declared for the document.
    """

    method: str
    path: str
    function: Callable[..., Awaitable[Any]]
    direct: bool
    """Whether the function is an `Endpoint`."""
    takes: tuple[str, ...]
    """The names of the function's parameters."""
    query: Any = None
    body: Any = None
    """A type; a tuple of types is a value that fits each of them, and a list a value that fits one."""
    reply: Any = None
    headers: type[BaseModel] | None = None
    """The headers that the function looks at."""
    admit: Callable[..., Any] | None = None
    """Gets the request and the parameters of its path before all else, and raises if it is refused."""
    errors: frozenset[int] = frozenset()
    """The statuses of its errors, besides those that follow from what it takes."""
    security: Security = ()
    group: str = ""
    """The environment or the API that it belongs to."""
    name: str = ""
    about: str = ""
    """A summary and, after an empty line, a description; by default the function's docstring."""
    detail: Callable[[], Any] | None = None
    """Gives a type of the body for the document, where it says more than that of the function."""
    large: bool = False
    """Whether a reply may be so large that it is encoded on a thread."""
    gives_cookie: bool = False
    """Whether a reply hands out a session's token."""
    effect: str | None = None
    """The effect of a tool."""

    @property
    def statuses(self) -> frozenset[int]:
        """The statuses of all its errors."""
        parts = {
            READING: self.body or self.detail,
            (422,): self.query or self.is_strict,
            NAMING: _PARAMETER.search(self.path),
        }
        return self.errors.union(ALWAYS, *(statuses for statuses, is_there in parts.items() if is_there))

    @property
    def is_strict(self) -> bool:
        """Whether it refuses a query or a body that its function does not take."""
        return not self.direct and "request" not in self.takes

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """The parameters of the path, each with its convertor."""
        return _PARAMETER.findall(self.path)

    @property
    def template(self) -> str:
        """The path as OpenAPI has it."""
        return _PARAMETER.sub(r"{\1}", self.path)

    def described_body(self) -> Any:
        """The type of the body, for the document."""
        return self.body if self.detail is None else self.detail()

    def under(
        self, prefix: str, group: str, *, security: Security | None = None, errors: Iterable[int] = ()
    ) -> Operation:
        """The same below a path, as a part of a group, perhaps with another security and more errors."""
        security = self.security if security is None else security
        path, errors = prefix + self.path, self.errors.union(errors)
        return replace(self, path=path, group=group, security=security, errors=errors)

    async def respond(self, request: Request) -> Response:
        """Answer a request that comes from the router."""
        if self.direct:
            return starlette_response(await self.function(http_request(request)))
        given: dict[str, Any] = dict(request.path_params)
        if self.admit is not None:
            given["caller"] = self.admit(http_request(request), **given)
        if "request" in self.takes:
            given["request"] = http_request(request)
        nothing = Nothing if self.is_strict else None
        if self.method != "POST" and (kind := self.query or nothing):
            given["query"] = parse(kind, dict(request.query_params))
        elif self.method == "POST" and (kind := self.body or nothing):
            given["body"] = parse(kind, http_request(request).json(), strict=True)
        reply = await self.function(**{name: given[name] for name in self.takes})
        if isinstance(reply, Response):
            return reply
        body = await asyncio.to_thread(to_json, reply) if self.large else to_json(reply)
        return Response(body, media_type="application/json")


def operation(
    method: str, path: str, function: Callable[..., Awaitable[Any]], *, errors: Iterable[int] = (), **more: Any
) -> Operation:
    """An endpoint, with what its function says of it."""
    types = get_type_hints(function, include_extras=True)
    reply = types.pop("return")
    direct = reply is HTTPResponse
    known = {} if direct else {"query": types.get("query"), "body": types.get("body"), "reply": reply}
    known |= {"name": function.__name__, "about": getdoc(function) or ""}
    return Operation(method, path, function, direct, tuple(types), errors=frozenset(errors), **(known | more))


get, post, delete = (partial(operation, method) for method in ("GET", "POST", "DELETE"))


# Routes.

RouteEndpoint = Callable[[Request], Awaitable[Response]]


class MethodRoute(Route):
    """A path, and what answers each method there."""

    def __init__(self, path: str, endpoints: Mapping[str, RouteEndpoint]) -> None:
        self.endpoints = endpoints
        super().__init__(path, self._respond, methods=[*endpoints])

    async def _respond(self, request: Request) -> Response:
        return await self.endpoints["GET" if request.method == "HEAD" else request.method](request)


def routes_of(operations: Iterable[Operation]) -> list[MethodRoute]:
    """The routes to some endpoints: one for each path."""
    paths: dict[str, dict[str, RouteEndpoint]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method] = each.respond
    return [MethodRoute(path, endpoints) for path, endpoints in paths.items()]


def http_request(request: Request) -> HTTPRequest:
    """The same request as the wire protocol's endpoints see it."""
    return request.scope[REQUEST]  # type: ignore[no-any-return]
