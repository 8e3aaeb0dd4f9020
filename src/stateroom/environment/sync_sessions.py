"""`SyncSessions`: the sessions in a store, for code without `async`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from stateroom.environment.arguments import make_environment
from stateroom.environment.environment import Environment
from stateroom.environment.registry import registered
from stateroom.errors import NotFound
from stateroom.session import BackgroundLoop, Blocking, Sessions
from stateroom.store import Head, Store, open_store


class SyncSessions:
    """The sessions in a store, for code without `async`: it has the methods of `Sessions`, and they block.

    Without an environment it can open sessions of registered environments, but seed none.
    """

    def __init__(self, url: str, environment: Environment[Any, Any] | None = None, **limits: Any) -> None:
        self.environment = environment
        self._limits = limits
        self._sessions: dict[int, Blocking] = {}
        self._registered: dict[str, Environment[Any, Any]] = {}
        self._resources = AsyncExitStack()
        self._loop = BackgroundLoop()
        try:
            self._store: Store = self._loop.run(self._resources.enter_async_context(open_store(url)))
        except BaseException:
            self._loop.close()
            raise

    def sessions(self, environment: Environment[Any, Any]) -> Any:
        """The sessions of an environment in this store, as a blocking `Sessions`."""
        if id(environment) not in self._sessions:
            made = Sessions[Any](environment, self._store, **self._limits)
            self._resources.push_async_callback(made.stop)
            self._sessions[id(environment)] = Blocking(made, self._loop)
        return self._sessions[id(environment)]

    def open(self, session_id: str, *, include_closed: bool = False) -> Any:
        """A blocking `Session` that was seeded before; its environment is that of these rooms, or a registered one."""
        environment = self.environment
        if environment is None:
            environment = self._named(self._loop.run(self._store.head(session_id)).environment)
        return self.sessions(environment).open(session_id, include_closed=include_closed)

    def _named(self, name: str) -> Environment[Any, Any]:
        if name not in registered():
            told = f"the session is of {name}, which is not registered here"
            raise NotFound(f"{told}; give its class: stateroom.open(url, environment)")
        return self._registered.setdefault(name, make_environment(name))

    def heads(self, environment: str | None = None, limit: int = 20) -> list[Head]:
        """The newest sessions in the store, of any environment or of one; a head has an id, a revision, and so on."""
        return self._loop.run(self._store.heads(environment=environment, limit=limit))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
