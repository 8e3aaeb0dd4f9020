"""Studio below `/studio/` of a server: the page, its files, the API that the page uses, and who may use it."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Message, Receive, Scope, Send

from stateroom.errors import DefinitionError, Forbidden, InvalidArguments, NotFound
from stateroom.model import ModelSource
from stateroom.server import (
    HTTPRequest,
    Operation,
    Services,
    check_operator,
    get,
    http_request,
    is_for_this_machine,
    is_loopback,
    routes_of,
)
from stateroom.store import without_secrets
from stateroom.studio.assets import ISOLATION, SECURITY as SECURITY_HEADERS, Assets
from stateroom.studio.runs import RunsAPI, RunStores
from stateroom.studio.sessions import InboxAPI, session_operations
from stateroom.studio.store import StoreAPI
from stateroom.version import __version__

API = "/api"

SECURITY: Any = {"security": [{}, {"studio": []}], "errors": (401, 403)}
"""Without a token the API answers on the server's own machine."""


Mode = Literal["read", "full"]
"""The mode of Studio: only to read sessions, or also to change them."""

READING = frozenset({"GET", "HEAD"})
"""The methods of endpoints that change nothing."""

OWN_SITES = (None, "same-origin", "none")
"""Values of `Sec-Fetch-Site` of our own page, of a person who opens a URL, and of programs other than browsers."""


class About(msgspec.Struct, frozen=True):
    """The data that a Studio shows."""

    version: str
    mode: Mode
    store: str
    environments: list[str]
    runs: str | None
    """The folder of runs."""


@dataclass(frozen=True)
class Studio:
    """Studio as an extension of a server."""

    path: ClassVar[str] = "/studio"

    mode: Mode = "full"
    token: str | None = field(default=None, repr=False)
    """Bearer token for the API; without one, it only answers on this machine."""
    runs: Path | None = None
    """The folder of the runs to show."""
    opens_browser: bool = False

    @property
    def restricted(self) -> bool:
        return self.token is not None or self.mode == "read"

    def check_operator(self, request: HTTPRequest) -> None:
        check_operator(request, self.token, "studio")

    def check_address(self, address: str) -> None:
        if self.token is None and not is_loopback(address):
            raise DefinitionError(
                f"other machines could reach Studio at {address}: set a token, with "
                "`studio_token` or the environment variable STATEROOM_STUDIO_TOKEN, or listen on the host 127.0.0.1"
            )

    def announce(self, root: str, say: Callable[[str], None]) -> None:
        """Print the URL; the token is in its fragment, which a browser never sends."""
        url = f"{root}{self.path}/" + ("" if self.token is None else f"#token={quote(self.token, safe='')}")
        say(f"studio: {url}")
        if self.opens_browser:
            webbrowser.open(url)

    def app(self, services: Services, models: Mapping[str, ModelSource]) -> StudioApp:
        return StudioApp(self, services, models)


class StudioApp:
    """Studio on the store of a server."""

    def __init__(self, studio: Studio, services: Services, models: Mapping[str, ModelSource]) -> None:
        self._studio = studio
        self._services = services
        self._on_sessions = session_operations(services, models)
        """The endpoints on sessions; below each run they are on the sessions of the run."""
        inbox, store = InboxAPI(services), StoreAPI(services)
        self._others = [get("/about", self.about), *inbox.operations(), *store.operations()]
        below: list[BaseRoute] = []
        if studio.runs is not None:
            runs = RunsAPI(studio.runs)
            self._others += runs.operations()
            below = [Mount("/runs/{run:id}", RunStores(services, models, runs, self._on_sessions))]
        routes = routes_of([*self._on_sessions, *self._others])
        router = Router([*routes, *below], redirect_slashes=False, default=_unknown)
        page = Route("/{path:path}", Assets(studio.path).respond)
        self.routes = [Mount(API, Gate(router, studio.check_operator, studio.mode)), page]
        self._router = Router(self.routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, with the headers that keep a browser careful."""
        asked = http_request(Request(scope))
        security = {**SECURITY_HEADERS, **(ISOLATION if asked.secure or is_for_this_machine(asked) else {})}

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in security.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._router(scope, receive, send_secured)

    def operations(self) -> list[Operation]:
        """The endpoints of the API, for the OpenAPI document of the server."""
        api = self._studio.path + API
        operations = [_signed(each).under(api, "studio", **SECURITY) for each in (*self._on_sessions, *self._others)]
        if self._studio.runs is not None:
            run = f"{api}/runs/{{run:id}}"
            operations += [_signed(each).under(run, "studio.run", **SECURITY) for each in self._on_sessions]
        return operations

    async def about(self) -> About:
        """The version, mode, store, environments and folder of runs of this Studio."""
        return About(
            version=__version__,
            mode=self._studio.mode,
            store=without_secrets(self._services.options.store),
            environments=[*self._services.environments],
            runs=None if self._studio.runs is None else str(self._studio.runs),
        )


class Person(BaseModel):
    """The common field in the body of every change."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    by: Annotated[str, Field(min_length=1)]
    """The person who makes this change."""


class Gate:
    """Lets a request pass that comes from Studio's page or its operator and that the mode allows."""

    def __init__(self, app: Router, check_operator: Callable[[HTTPRequest], None], mode: Mode) -> None:
        self._app = app
        self._check_operator = check_operator
        self._mode = mode
        self.routes = app.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        self._check_operator(http_request(request))
        site = request.headers.get("sec-fetch-site")
        if site not in OWN_SITES:
            raise Forbidden(
                f"this request comes from another web page ({site}), but only Studio's own page may use its API"
            )
        if request.method not in READING:
            self._check_change(http_request(request))
        await self._app(scope, receive, send)

    def _check_change(self, request: HTTPRequest) -> None:
        if self._mode == "read":
            raise Forbidden("Studio is read-only; to make changes, start it in the mode full")
        if not request.json().get("by"):
            message = "should name the person who makes this change"
            raise InvalidArguments(f"by: {message}", {"by": message})


def _signed(operation: Operation) -> Operation:
    """An endpoint as it is behind the gate: a change has the name of its person."""
    if operation.method in READING:
        return operation
    return replace(operation, detail=lambda: tuple(filter(None, (operation.described_body(), Person))))


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound(f"unknown path {scope['path']}; sessions are at {scope['root_path']}/sessions")
