"""The store that a `tiered://` URL names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, Self, TypeVar

from stateroom.errors import StoreUnavailable, UnknownStore
from stateroom.store.contract import Head
from stateroom.store.tiered.cache import CachingStore
from stateroom.store.tiered.moving import MovingStore
from stateroom.store.tiered.tier import Tier
from stateroom.store.url import StoreURL, parse_url, without_secrets
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

COOL = 3600.0
"""After how many seconds without a commit a session leaves the warm tier."""


class TieredStore(WrappedStore):
    """Sessions in two stores. Closing it waits for what is under way, which takes several steps here."""

    def __init__(self, store: MovingStore | CachingStore) -> None:
        super().__init__(store)
        self.remote = False  # each tier that is has its own patience
        self._tiered = store
        self._under_way = 0
        self._closed = False
        self._idle = asyncio.Event()

    @classmethod
    async def open(cls, url: str) -> Self:
        warm, cold, durable, cool = _read(url)
        if durable == "cold":
            return cls(CachingStore(await Tier.reach("warm", _impatient(warm)), await Tier.reach("cold", cold), cool))
        return cls(MovingStore(await Tier.reach("warm", warm), await Tier.reach("cold", cold), cool))

    async def close(self) -> None:
        self._closed = True
        if self._under_way:
            await self._idle.wait()
        await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreUnavailable("this store is closed")
        self._under_way += 1
        try:
            return await work(*args, **kwargs)
        finally:
            self._under_way -= 1
            if self._closed and not self._under_way:
                self._idle.set()

    def tiers(self) -> dict[str, str]:
        """What each tier is and whether it could be reached when it was last needed, in words."""
        return {tier.name: tier.state() for tier in (self._tiered.warm, self._tiered.cold)}

    async def adopt(self, session: str) -> Head:
        """Go on from the cold tier's copy of a session that the warm tier has lost, and give up what came after it."""
        return await self._tiered.adopt(session)


def _read(url: str) -> tuple[str, str, str, float]:
    """The URLs of both tiers, which of them makes a commit durable, and after how long a session cools."""
    shown = without_secrets(url)
    # In a URL within a URL a plus is a plus: redis+sentinel://
    try:
        parts = parse_url(url.replace("+", "%2B"), options={"warm", "cold", "durable", "cool"})
    except UnknownStore as error:
        raise UnknownStore(f"{error} (an & in the URL of a tier is written %26)") from None
    if parts.host or parts.path:
        raise UnknownStore(f"{shown}: nothing stands between tiered:// and the ?")
    for tier in ("warm", "cold"):
        if "://" not in parts.options.get(tier, ""):
            raise UnknownStore(
                f"{shown}: {tier}= must be the URL of a store, as in "
                "tiered://?warm=redis://localhost&cold=postgresql://localhost/rooms (an & in it is written %26)"
            )
    if parts.options["warm"] == parts.options["cold"]:
        raise UnknownStore(f"{shown}: the two tiers are one store")
    return parts.options["warm"], parts.options["cold"], _durable(parts), parts.seconds("cool", COOL)


def _durable(parts: StoreURL) -> str:
    durable = parts.options.get("durable", "warm")
    if durable not in ("warm", "cold"):
        raise parts.wrong("durable", "warm or cold")
    return durable


def _impatient(url: str) -> str:
    """A URL of a store that can be done without: nobody is to wait for it."""
    if "patience=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}patience=0"
