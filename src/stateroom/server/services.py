"""Shared parts of a server: its options, store, environments, API keys and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from stateroom.agent import ThreadEnvironment
from stateroom.environment import Environment
from stateroom.errors import Busy, SessionError
from stateroom.server.access import Keys
from stateroom.server.environment import ServedEnvironment
from stateroom.server.metrics import MeasuredStore, Metrics
from stateroom.server.options import ApplicationOptions
from stateroom.server.sweep import SessionCount, Sweeper
from stateroom.server.tokens import Signer
from stateroom.session import MAX_READS, SessionLimits, Sessions
from stateroom.store import Store, open_store


class Services:
    """The store and all that uses it. Parts of the server get this object, and not the application."""

    count: SessionCount
    """The number of live sessions; set by `start`."""
    resources: AsyncExitStack
    """The resources to close when the server stops; set by `start`."""

    def __init__(
        self,
        environments: Sequence[Environment[Any, Any]],
        options: ApplicationOptions,
        now: Callable[[], float],
        stopping: asyncio.Event,
    ) -> None:
        self.options = options
        self.now = now
        self.stopping = stopping
        """Set when the server begins to stop."""
        self.served = environments
        self.all = (*environments, ThreadEnvironment())
        """All environments that have sessions here: those that are served, and plain threads."""
        self.keys = Keys(options.keys, now, options.shared_folder)
        self.metrics = Metrics({each.name: each.tools for each in self.all}, options.shared_folder)
        self.environments: dict[str, ServedEnvironment] = {}
        """The served environments by name."""
        self.session_environments: dict[str, ServedEnvironment] = {}
        """The environments of `all` by name."""
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store, while the server runs."""
        if self._store is None:
            raise Busy("the server is starting, or stopping")
        return self._store

    async def start(self, resources: AsyncExitStack, wrap: Callable[[Store], Store] | None) -> None:
        """Open the store, and serve the environments from it, until `resources` is closed.

        `wrap` may put another store around it, for traces.
        """
        self.resources = resources
        measured = MeasuredStore(await resources.enter_async_context(open_store(self.options.store)), self.metrics)
        self._store = measured if wrap is None else wrap(measured)
        resources.callback(setattr, self, "_store", None)
        self.count = SessionCount(self._store, self.options.max_sessions, self.now)
        for environment in self.all:
            served = self._serve(environment)
            resources.push_async_callback(served.sessions.stop)
            self.session_environments[environment.name] = served
        self.environments.update({each.name: self.session_environments[each.name] for each in self.served})
        swept = () if self.options.for_operator else self.session_environments.values()
        sessions = [served.sessions for served in swept]
        await resources.enter_async_context(Sweeper(sessions, self.count, self.options.ttl, self.metrics))

    def _serve(self, environment: Environment[Any, Any]) -> ServedEnvironment:
        options = self.options
        limits = SessionLimits(
            ttl=options.ttl,
            timeout=options.timeout,
            max_state=options.max_state,
            max_log=options.max_log,
            max_calls=max(MAX_READS, options.max_calls // 8),
            now=self.now,
        )
        sessions = Sessions[Any](environment, self.store, limits)
        signer = Signer(options.secrets, environment.name, options.ttl, self.now)
        prefix = f"/{environment.name}" if len(self.served) > 1 else ""
        return ServedEnvironment(
            environment,
            sessions,
            signer,
            self.count,
            self.metrics,
            prefix,
            self.keys,
            self.environments,
            gym_compat=options.gym_compat,
            ignores_extra=options.gym_compat or options.extra_arguments == "ignore",
        )

    async def environment_of(self, session: str) -> ServedEnvironment:
        """The environment of a session; only with it can the session be changed."""
        name = (await self.store.head(session)).environment
        if name not in self.session_environments:
            raise SessionError(
                session,
                f"session {session!r} belongs to the environment {name!r}, which this server does not serve, so you "
                "can only read or delete it; to change it, start the server with that environment",
            )
        return self.session_environments[name]
