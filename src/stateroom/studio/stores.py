"""The sessions of runs: each run has a store beside its files, which is opened when somebody looks into it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from stateroom.errors import NotFound
from stateroom.model import ModelSource
from stateroom.rollout import StoredRun
from stateroom.server import Operation, Services, routes_of
from stateroom.store import without_secrets
from stateroom.studio.runs import RunsAPI
from stateroom.studio.sessions import session_operations

OPEN = 32
"""Stores that are kept open, besides those in use."""


class _OpenStore:
    """A store, and the API on its sessions."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.resources = AsyncExitStack()
        self.app: ASGIApp | None = None
        self.used = 0
        """Requests that are under way."""


class RunStores:
    """The API on the sessions of runs, below the path of each run."""

    def __init__(
        self, services: Services, models: Mapping[str, ModelSource], runs: RunsAPI, operations: list[Operation]
    ) -> None:
        """`operations` are the endpoints on the sessions of Studio's own store, in which runs may have kept theirs."""
        self._services = services
        self._models = models
        self._runs = runs
        self._stores: dict[str, _OpenStore] = {}
        self.operations = operations
        self.routes = routes_of(operations)  # by which all routes of a server can be listed
        services.resources.push_async_callback(self.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        url = self._url(await self._runs.find(scope["path_params"]["run"]))
        kept = self._stores.pop(url) if url in self._stores else _OpenStore()
        self._stores[url] = kept  # the most recent comes last
        kept.used += 1
        try:
            async with kept.lock:
                if kept.app is None:
                    kept.app = await self._open(url, kept.resources)
            await kept.app(scope, receive, send)
        finally:
            kept.used -= 1
            await self._close_idle()

    def _url(self, run: StoredRun) -> str:
        """The store beside the run, or Studio's own. No other is opened: a file could name any server."""
        path: Path = run.files.sessions
        own = self._services.options.store
        if path.is_file() and not path.is_symlink():
            assert run.store is not None
            return run.store
        if run.store is None:
            raise NotFound(f"run {run.files.rollouts.name} has kept no sessions")
        if run.store != without_secrets(own):
            raise NotFound(f"the sessions of this run are in {run.store}: open Studio on that store to see them")
        return own

    async def _open(self, url: str, resources: AsyncExitStack) -> ASGIApp:
        known, operations = self._services, self.operations
        if url != known.options.store:
            options = replace(known.options, store=url, for_operator=True, keys=(), shared_folder=None)
            services = Services(known.served, options, known.now, known.stopping)
            await services.start(resources, None)
            operations = session_operations(services, self._models)
        return Router(routes_of(operations), redirect_slashes=False)

    async def _close_idle(self) -> None:
        idle = [url for url, kept in self._stores.items() if not kept.used]
        for url in idle[: max(0, len(self._stores) - OPEN)]:
            await self._stores.pop(url).resources.aclose()

    async def close(self) -> None:
        """Close all stores."""
        while self._stores:
            _, kept = self._stores.popitem()
            await kept.resources.aclose()
