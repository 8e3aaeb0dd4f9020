"""The Starlette router of a server: probes, metrics, documentation, the admin API, threads and MCP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from stateroom.agent import ThreadEnvironment
from stateroom.errors import Busy, NotFound
from stateroom.model import ModelSource
from stateroom.server.access import check_admin
from stateroom.server.admin import AdminAPI
from stateroom.server.agent import AgentAPI
from stateroom.server.asgi import REQUEST
from stateroom.server.environment import ServedEnvironment
from stateroom.server.gymnasium import Gymnasium
from stateroom.server.http import (
    Endpoint,
    HTTPRequest,
    ProbeReply,
    Receive,
    Scope,
    Send,
    error_response,
    starlette_response,
)
from stateroom.server.openapi import Docs, document
from stateroom.server.operation import FOR_OPERATOR, Operation, get, routes_of
from stateroom.server.options import ApplicationOptions
from stateroom.server.services import Services
from stateroom.server.threads import ThreadsAPI
from stateroom.server.verification import VerdictAPI
from stateroom.state import to_json

if TYPE_CHECKING:
    from stateroom.server.mcp import ToolServer

SDK = ("mcp", "mcp_types")
"""The packages of the MCP SDK; a server without them serves all else."""


class Extension(Protocol):
    """Pages and endpoints of another package, below one path. It is plain data: each worker process gets a copy."""

    path: ClassVar[str]

    @property
    def restricted(self) -> bool:
        """Whether it restricts programs on this machine, so the admin API must restrict them too."""

    def check_address(self, address: str) -> None:
        """Raise `DefinitionError` if it must not be served at an IP address."""

    def check_operator(self, request: HTTPRequest) -> None:
        """Raise unless a request is from its operator."""

    def announce(self, root: str, say: Callable[[str], None]) -> None:
        """Announce its address, once the server listens at the URL `root`."""

    def app(self, services: Services, models: Mapping[str, ModelSource]) -> ExtensionApp:
        """The application below the path. `models` has the models that can act in environments, by name."""


class ExtensionApp(Protocol):
    """The ASGI application of an extension."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def operations(self) -> list[Operation]:
        """Its endpoints, for the OpenAPI document of the server."""


class Routes:
    """All routes of a server, and which of them belongs to which environment."""

    def __init__(
        self,
        services: Services,
        threads: ThreadsAPI,
        agents: Mapping[str, AgentAPI],
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.services = services
        self.agents = agents
        models = {**{name: agent.plan.model for name, agent in agents.items()}, **threads.models}
        self.extensions = extensions
        apps = {each.path: each.app(services, models) for each in extensions}
        self.operations: list[Operation] = []
        """The endpoints, for the OpenAPI document."""
        self.direct: dict[str, Endpoint] = {}
        """The endpoints of each call and each episode by path, which need no router."""
        self.mcp: list[MCPEndpoint] = []
        self._paths: dict[tuple[str, str], str | None] = {}
        """The environments of fixed paths, by method and path."""
        self._prefixes: dict[str, tuple[str | None, str]] = {}
        """The environments of all paths with these starts, and a hint for those that do not exist."""
        self._environments = {} if services.options.for_operator else services.environments
        """The environments that agents use."""
        docs = Docs()
        self._prefixes["/docs"] = None, "the documentation is at /docs"
        server = self._server_operations(docs)
        files = get("/docs/{name}", docs.file, admit=self._check_operator)
        routes: list[BaseRoute] = [*routes_of([*server, files])]
        for served in self._environments.values():
            routes += self._environment_routes(served)
        if not services.options.for_operator:
            self._prefixes |= {
                "/admin": (None, "sessions are at /admin/sessions"),
                "/threads": (None, "threads are at /threads"),
            }
            own = [each.under("", "threads") for each in threads.operations()]
            admin = AdminAPI(services, models).operations()
            router = Router(routes_of(admin), redirect_slashes=False, default=self._unknown)
            routes += [*routes_of(own), Mount("/admin", _AdminOnly(router, services.options))]
            self.operations += map(self._with_key, own)
            self.operations += [each.under("/admin", "admin", **FOR_OPERATOR) for each in admin]
        self.operations += server
        for path, app in apps.items():
            self._prefixes[path] = None, f"it begins at {path}/"
            routes += [Route(path, _to_folder), Mount(path, app)]
            self.operations += app.operations()
        self.app = Router(routes, redirect_slashes=False, default=self._unknown)

    def _server_operations(self, docs: Docs) -> list[Operation]:
        operations = [
            get("/", _ok, name="root", about="Check that the server runs."),
            get("/health", _ok, name="health", about="Check that the process runs."),
            get("/ready", self._ready, name="ready"),
            get("/metrics", self._metrics, name="metrics", admit=self._check_operator),
            get("/openapi.json", self._openapi, name="openapi", reply=dict[str, Any], admit=self._check_operator),
            get("/docs", docs.page, name="docs", reply=HTMLResponse, admit=self._check_operator),
        ]
        self._paths |= {("GET", each.path): None for each in operations}
        return operations

    def _check_operator(self, request: HTTPRequest, **path: str) -> None:
        """Refuse all others, if the server is only for its operator."""
        if self.services.options.for_operator:
            for each in self.extensions:
                each.check_operator(request)

    def _environment_routes(self, served: ServedEnvironment) -> list[BaseRoute]:
        threads = self.services.session_environments[ThreadEnvironment.name]
        verdicts = VerdictAPI(served)
        own = served.operations() + verdicts.operations() + Gymnasium(verdicts, threads).operations()
        own += self.agents[served.name].operations() if served.name in self.agents else []
        operations = [each.under(served.prefix, served.name) for each in own]
        self.operations += map(self._with_key, operations)
        self.direct |= {each.path: each.function for each in operations if each.direct and each.method == "POST"}
        self._paths |= {(each.method, each.path): served.name for each in operations}
        mcp = MCPEndpoint(served, self.services.options)
        self.mcp.append(mcp)
        self._prefixes[mcp.path] = served.name, f"MCP is at {mcp.path}"
        return [*routes_of(operations), *(Route(path, mcp, methods=["POST"]) for path in (mcp.path, f"{mcp.path}/"))]

    def _with_key(self, operation: Operation) -> Operation:
        """An endpoint as API keys change it: a POST without a session needs one, and all requests count."""
        if not self.services.keys:
            return operation
        security = operation.security
        if operation.method == "POST":
            security = [need or {"key": []} for need in security or [{}]]
        return operation.under("", operation.group, security=security, errors=(401, 429))

    def place_of(self, method: str, path: str) -> tuple[str | None, str | None]:
        """The route that answers a request, and its environment; for traces and the access log."""
        place = ("GET" if method == "HEAD" else method, path)
        if place in self._paths:
            return path, self._paths[place]
        start = self._prefix_of(path)
        return start, None if start is None else self._prefixes[start][0]

    def template_of(self, method: str, path: str) -> str:
        """The route that answers a request, without the names of environments and tools; for metrics."""
        place, environment = self.place_of(method, path)
        if place is None or environment is None:
            return place or "other"
        served = self._environments[environment]
        own = place.removeprefix(served.prefix)
        return "/TOOL" if own[1:] in served.environment.tools else own or "/"

    def _prefix_of(self, path: str) -> str | None:
        return next((start for start in self._prefixes if path == start or path.startswith(f"{start}/")), None)

    async def _ready(self, request: HTTPRequest) -> ProbeReply:
        """Check that the server is ready: the store answers."""
        if self.services.stopping.is_set():
            raise Busy("the server is stopping")
        await self.services.store.heads(limit=1)
        return ProbeReply()

    async def _metrics(self, request: HTTPRequest) -> PlainTextResponse:
        """Read the metrics for Prometheus."""
        accept = request.headers.get(b"accept", b"")
        await self.services.count.refresh()
        text, content_type = self.services.metrics.exposition(accept, self.services.count.live)
        return PlainTextResponse(text, headers={"content-type": content_type.decode()})

    async def _openapi(self, request: HTTPRequest) -> Response:
        """Read this document."""
        return Response(self._document, media_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return to_json(document(self.operations, [*self.services.environments.values()]))

    async def _unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an unknown path, perhaps a tool that a model made up."""
        environments, path = self._environments, unquote(scope["path"])
        start = self._prefix_of(path)
        if start == "/admin":
            check_admin(scope[REQUEST], self.services.options)
        if start is not None:
            raise NotFound(f"unknown path {path}; {self._prefixes[start][1]}")
        if len(environments) == 1:
            [served], rest = environments.values(), path[1:]
        else:
            name, _, rest = path[1:].partition("/")
            if name not in environments:
                known = ", ".join(f"/{name}" for name in environments)
                hint = f"environments are at {known}" if known else "this server has no endpoints for agents"
                raise NotFound(f"unknown path {path}; {hint}")
            served = environments[name]
        await starlette_response(await served.no_tool(scope[REQUEST], rest))(scope, receive, send)


async def _ok(request: HTTPRequest) -> ProbeReply:
    return ProbeReply()


async def _to_folder(request: Request) -> Response:
    return RedirectResponse(f"{request.url.path}/")


class _AdminOnly:
    """Lets only those in who may use the admin API."""

    def __init__(self, app: Router, options: ApplicationOptions) -> None:
        self._app = app
        self._options = options
        self.routes = app.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_admin(scope[REQUEST], self._options)
        await self._app(scope, receive, send)


class MCPEndpoint:
    """The tools of one environment for MCP clients, over streamable HTTP.

    No request depends on another, so any worker can answer any of them. Only POST is answered: there is nothing to
    push to a client, and no MCP session to end.
    """

    def __init__(self, served: ServedEnvironment, options: ApplicationOptions) -> None:
        self.served = served
        self.path = f"{served.prefix}/mcp"
        self._options = options
        self._server: ToolServer | None = None
        """None: the MCP SDK is not installed."""

    async def start(self, resources: AsyncExitStack) -> None:
        """Import the SDK, and run its server until `resources` is closed, which must be in the same task."""
        try:
            from stateroom.server.mcp import ToolServer  # noqa: PLC0415 - this imports the SDK, an extra
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in SDK:
                raise
            return
        self._server = ToolServer(self.served, self._options.max_body, choose_task=self._options.choose_task)
        await resources.enter_async_context(self._server.running())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served.admit_mcp(scope[REQUEST])
        if self._server is None:
            message = "MCP needs version 2 of the mcp package: pip install 'stateroom[mcp]'"
            await starlette_response(error_response(501, "not_installed", message))(scope, receive, send)
            return
        await self._server(scope, receive, send)
