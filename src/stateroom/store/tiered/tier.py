"""One tier: a store that may be unreachable, also when it is opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar, cast

from stateroom.errors import StoreUnavailable
from stateroom.store.contract import Store
from stateroom.store.url import opened, without_secrets
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Unopened:
    """Stands in for a store that is opened before one of its methods is called."""

    shared = True
    remote = True
    large = Store.large

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @property
    def maintenance(self) -> _Unopened:
        return _Unopened(lambda: self._find().maintenance)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._find(), name)(*args, **kwargs)

        return call


class Tier(WrappedStore):
    """A store that may be unreachable. If it is so when it is opened, each operation tries to open it.

    The first failure and the recovery are logged.
    """

    def __init__(self, name: str, url: str, store: Store | None = None) -> None:
        super().__init__(store or cast(Store, _Unopened(lambda: self.store)))
        self.name = name
        self.url = url
        self.shown = without_secrets(url)
        self.trouble: str | None = None
        """Why it could not be reached when it was last needed."""
        self._is_open = store is not None
        self._opening = asyncio.Lock()
        self._closed = False

    @classmethod
    async def reach(cls, name: str, url: str) -> Self:
        """The tier at a URL, reachable or not."""
        tier = cls(name, url)
        try:
            await tier._open()
        except StoreUnavailable as error:
            tier._note(str(error))
        return tier

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                self.store = await opened(self.url)
                self.shared = self.store.shared
                self._is_open = True

    async def close(self) -> None:
        self._closed = True
        if self._is_open:
            await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            if not self._is_open:
                await self._open()
            result = await work(*args, **kwargs)
        except StoreUnavailable as error:
            self._note(str(error))
            raise StoreUnavailable(f"the {self.name} tier cannot be reached: {error}") from error
        if self.trouble is not None:
            self._note(None)
        return result

    def _note(self, trouble: str | None) -> None:
        if self._closed:
            return
        if trouble is None:
            logger.warning("the %s tier (%s) can be reached again", self.name, self.shown)
        elif self.trouble is None:
            logger.warning("the %s tier (%s) cannot be reached: %s", self.name, self.shown, trouble)
        self.trouble = trouble

    def state(self) -> str:
        """Its URL, and whether it could be reached when it was last needed."""
        return f"{self.shown}: {f'cannot be reached: {self.trouble}' if self.trouble else 'well'}"
