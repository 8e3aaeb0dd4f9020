"""Stores whose operations a test counts, interrupts, or cuts off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from stateroom.store import MemoryStore, Store, Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

Act = Callable[..., Awaitable[object]]
"""Is given an operation, its session, and what it was called with."""


class WatchedStore(WrappedStore):
    """Counts what is asked of a store; something may happen before and after each operation, such as an error."""

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(MemoryStore() if store is None else store)
        self.counts = Counter[str]()
        self.before: Act | None = None
        self.after: Act | None = None

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.counts[operation] += 1
        if self.before is not None:
            await self.before(operation, session, *args)
        done = await work(*args, **kwargs)
        if self.after is not None:
            await self.after(operation, session, *args)
        return done


class Died(BaseException):
    """The process is no more."""


class MortalStore(WrappedStore):
    """A store whose process dies at an append: before it, or after it and before the answer."""

    def __init__(self, store: Store, appends: int, *, after: bool) -> None:
        super().__init__(store)
        self._left, self._after = appends, after
        self.dead = False

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.dead:
            raise Died
        self._left -= operation == "append"
        self.dead = self._left == 0
        if self.dead and not self._after:
            raise Died
        done = await work(*args, **kwargs)
        if self.dead:
            raise Died
        return done
