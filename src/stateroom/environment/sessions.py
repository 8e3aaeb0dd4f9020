"""The sessions in a store of one environment after another, and the same for code without `async`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

from stateroom.environment.environment import Environment
from stateroom.environment.registry import make_environment, registered, variant_of
from stateroom.errors import NotFound
from stateroom.options import make_options
from stateroom.session import BackgroundLoop, Blocking, SessionLimits, Sessions
from stateroom.store import Head, HeadFilter, Store, open_store


class StoreSessions:
    """The `Sessions` of each environment in a store, and of each variant: an instance with the `env_args` of rows."""

    def __init__(self, store: Store, limits: SessionLimits | None = None) -> None:
        self.store = store
        self._limits = limits
        self._sessions: dict[int, Sessions[Any]] = {}

    def of(self, environment: Environment[Any, Any], row: Mapping[str, Any] | None = None) -> Sessions[Any]:
        """The sessions of an environment, or of its variant for a row."""
        variant = environment if row is None else variant_of(environment, row)
        if id(variant) not in self._sessions:
            self._sessions[id(variant)] = Sessions(variant, self.store, self._limits)  # which keeps the variant alive
        return self._sessions[id(variant)]

    async def stop(self) -> None:
        """Stop the resources of all sessions in this process."""
        for sessions in self._sessions.values():
            await sessions.stop()


class SyncSessions:
    """The sessions in a store, for code without `async`, with the methods of `Sessions` as blocking methods.

    Without an environment, you can open sessions of registered environments, but not seed any.
    """

    def __init__(self, url: str, environment: Environment[Any, Any] | None = None, **limits: Any) -> None:
        self.environment = environment
        self._registered: dict[str, Environment[Any, Any]] = {}
        self._resources = AsyncExitStack()
        self._loop = BackgroundLoop()
        try:
            store = self._loop.run(self._resources.enter_async_context(open_store(url)))
            self._sessions = StoreSessions(store, make_options(SessionLimits, **limits))
            self._resources.push_async_callback(self._sessions.stop)
        except BaseException:
            self._loop.close()
            raise

    def sessions(self, environment: Environment[Any, Any]) -> Any:
        """Return the sessions of an environment in this store, as a blocking `Sessions`."""
        return Blocking(self._sessions.of(environment), self._loop)

    def open(self, session_id: str, *, include_closed: bool = False) -> Any:
        """Open a session that was seeded before, as a blocking `Session`."""
        environment = self.environment
        if environment is None:
            environment = self._named(self._loop.run(self._sessions.store.head(session_id)).environment)
        return self.sessions(environment).open(session_id, include_closed=include_closed)

    def _named(self, name: str) -> Environment[Any, Any]:
        if name not in registered():
            unknown = f"the session belongs to the environment {name!r}, which is not registered"
            raise NotFound(f"{unknown}; pass its class: stateroom.open(url, environment)")
        return self._registered.setdefault(name, make_environment(name))

    def heads(self, environment: str | None = None, limit: int = 20) -> list[Head]:
        """Return the heads of the newest sessions in the store, of one environment or of all."""
        return self._loop.run(self._sessions.store.heads(HeadFilter(environment=environment), limit=limit))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.environment is None:
            raise NotFound(f"{name} needs an environment: stateroom.open(url, environment)")
        return getattr(self.sessions(self.environment), name)

    def close(self) -> None:
        """Stop the resources of the sessions, and close the store. Closing twice is fine."""
        if self._loop.is_open:
            self._loop.run(self._resources.aclose())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
