"""The ASGI application of environments."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stateroom.agent import ThreadEnvironment
from stateroom.environment import RESERVED, Environment
from stateroom.errors import DefinitionError
from stateroom.model import ModelSource
from stateroom.server.agent import agents_of, open_models
from stateroom.server.asgi import ROLLOUT, AccessLog, ASGIApplication
from stateroom.server.http import HTTPResponse, error_response, response_to
from stateroom.server.options import ApplicationOptions
from stateroom.server.routes import Extension, Routes
from stateroom.server.services import Services
from stateroom.server.threads import ThreadsAPI

if TYPE_CHECKING:
    from stateroom.server.spans import Tracing

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Application(ASGIApplication):
    """One or more environments, served from one store."""

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        options: ApplicationOptions,
        *,
        extensions: Sequence[Extension] = (),
        now: Callable[[], float] = time.time,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(options, options.hosts)
        _check_names([environment.name for environment in environments], {each.path[1:] for each in extensions})
        self.extensions = extensions
        if any(each.restricted for each in extensions):
            options = replace(options, local_admin=False)
        self.services = Services(environments, options, now, self.stopping)
        self.tracing = tracing
        self._resources = AsyncExitStack()
        if options.access_log is not None:
            self.access_log = AccessLog(lambda *asked: self.place_of(*asked)[1], as_json=options.access_log == "json")

    async def start(self) -> None:
        """Open the store and the models, and get ready to serve."""
        resources = self._resources
        if self.tracing is not None:
            resources.push_async_callback(self.tracing.shutdown)  # when all else has ended
        await self.services.start(resources, None if self.tracing is None else self.tracing.store)
        thread_models, agent_models = await self.open_models(resources)
        threads, agents = ThreadsAPI(self.services, thread_models), agents_of(self.services, agent_models)
        self._routes = Routes(self.services, threads, agents, self.extensions)
        for mcp in self._routes.mcp:
            await mcp.start(resources)
        self.router, self.endpoints = self.with_errors(self._routes.app), self._routes.direct
        route_of = self._routes.template_of
        posted = {path: route_of("POST", path) for path in self.endpoints}
        self.count_request = self.services.metrics.requests(posted, route_of)
        self.cookies = [served.cookies for served in self.services.environments.values()]

    async def open_models(self, resources: AsyncExitStack) -> list[dict[str, ModelSource]]:
        """The models that answer in threads and those that run episodes, open until `resources` is closed."""
        services, options = self.services, self.services.options
        specs = ((options.model, services.all), (options.agent, services.served))
        return [await open_models(spec, served, options.api_key_env, resources) for spec, served in specs]

    async def stop(self) -> None:
        await self._resources.aclose()

    def response_to(self, error: Exception, what: str) -> HTTPResponse:
        return response_to(error, what)

    def error_response(self, status: int, code: str, message: str) -> HTTPResponse:
        return error_response(status, code, message)

    def place_of(self, method: str, path: str) -> tuple[str | None, str | None]:
        """The route that answers a request, and its environment; for traces and the access log."""
        return self._routes.place_of(method, ROLLOUT.sub("", path, count=1))


def _check_names(names: Sequence[str], taken: Collection[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise DefinitionError(
                f"the environment name {name!r} cannot be part of a path; use letters, digits, _ and -"
            )
        if names.count(name) > 1:
            raise DefinitionError(f"two environments are named {name!r}; rename one")
        if name == ThreadEnvironment.name:
            raise DefinitionError(
                f"the environment name {name!r} is reserved for plain threads; rename the environment"
            )
        if len(names) > 1 and (name in RESERVED or name in taken):
            raise DefinitionError(
                f"the environment name {name!r} is reserved by the server; serve this environment alone"
            )
