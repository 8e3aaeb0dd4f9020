"""Two tiers, and processes that use them and die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from stateroom.store import Store, Work, WrappedStore
from stateroom.store.conformance.helpers import (
    LATER,
    MUCH_LATER,
    NOW,
    everything,
    make_blobs,
    make_entry,
    make_fork,
    make_head,
    make_session,
)
from stateroom.store.tiered.durable_warm import DurableWarmStore
from stateroom.store.tiered.tier import Tier

__all__ = [
    "LATER", "MUCH_LATER", "NOW", "Crash", "Death", "Fate", "Meanwhile", "Script", "everything", "make_blobs",
    "make_entry", "make_fork", "make_head", "make_session", "process", "tiered",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")


def tiered(warm: str, cold: str, **options: object) -> str:
    """The URL of a store with these tiers."""
    given = {"warm": warm, "cold": cold, **options}
    return "tiered://?" + "&".join(f"{name}={quote(str(value), safe=':/?=')}" for name, value in given.items())


class Crash(Exception):
    """The end of a process."""


class Fate:
    """What comes to a process with an operation on either tier."""

    def __init__(self, operation: float = float("inf")) -> None:
        self.left = operation

    async def meet(self, operation: str, work: Callable[[], Work[T]]) -> T:
        """Do an operation, the one more that is left until then."""
        self.left -= 1
        if self.left == 0:
            await self.strike()
        return await work()

    async def strike(self) -> None:
        """What comes, before the operation is done."""


class Death(Fate):
    """Comes before the operation is done, or when it is done and nobody has heard of it."""

    def __init__(self, operation: float, *, done: bool = False) -> None:
        super().__init__(operation)
        self.done = done

    async def meet(self, operation: str, work: Callable[[], Work[T]]) -> T:
        self.left -= 1
        if self.left == 0 and self.done:
            await work()
        if self.left <= 0:
            raise Crash
        return await work()


class Meanwhile(Fate):
    """Somebody else begins to do something, and gets as far as can be without waiting for this process."""

    def __init__(self, operation: float, what: Callable[[], Work[object]]) -> None:
        super().__init__(operation)
        self.what = what
        self.task: asyncio.Task[object] | None = None

    async def strike(self) -> None:
        self.task = asyncio.create_task(self.what())
        for _ in range(200):
            await asyncio.sleep(0)


class Script(Fate):
    """Something to be done before each of some operations, by their numbers."""

    def __init__(self, acts: Mapping[int, Callable[[], Awaitable[object]]]) -> None:
        super().__init__()
        self.acts = acts
        self.number = 0

    async def meet(self, operation: str, work: Callable[[], Work[T]]) -> T:
        self.number += 1
        if self.number in self.acts:
            await self.acts[self.number]()
        return await work()


class Fated(WrappedStore):
    """A store as a process sees it to which something will happen."""

    def __init__(self, store: Store, fate: Fate) -> None:
        super().__init__(store)
        self.fate = fate

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.fate.meet(operation, lambda: work(*args, **kwargs))


def process(warm: Store, cold: Store, fate: Fate | None = None, cool: float = 0.0) -> DurableWarmStore:
    """A process that moves what has cooled."""
    fate = fate or Fate()
    return DurableWarmStore(
        Tier("warm", "memory://", Fated(warm, fate)), Tier("cold", "memory://", Fated(cold, fate)), cool
    )
