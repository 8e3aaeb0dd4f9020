"""The store of a `tiered://` URL.

The sessions that a process has loaded are the hot tier. Under them, `warm` is a fast store (Redis, SQLite) and `cold` a
large one (PostgreSQL, objects); each may be any store. `durable` says which of them makes a commit durable:

- `durable=warm`, the default: an active session is in the warm tier, and moves to the cold one after `cool` seconds
  (3600 by default) without a commit. A commit is as durable as the warm tier. If the warm tier is down, sessions at
  rest in the cold one can be read; if the cold tier is down, warm sessions go on. See `durable_warm`.
- `durable=cold`: every session is in the cold tier, and the warm one caches copies for fast reads, for `cool` seconds
  after a commit. A commit is as durable as the cold tier. If the warm tier is down, everything goes on; if the cold
  tier is down, nothing does. See `durable_cold`.

An & in the URL of a tier is written %26, and each tier has its own `compress`, `keys` and `timeout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Self, TypeVar

from stateroom.errors import UnknownStore
from stateroom.store.concurrency import Gate
from stateroom.store.records import Head
from stateroom.store.tiered.durable_cold import DurableColdStore
from stateroom.store.tiered.durable_warm import DurableWarmStore
from stateroom.store.tiered.tier import Tier
from stateroom.store.url import parse_url, without_secrets
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

COOL_SECONDS = 3600.0
"""Seconds without a commit after which a session leaves the warm tier."""


class TieredStore(WrappedStore):
    """Sessions in two stores. Closing it waits for pending operations, which take several steps here."""

    def __init__(self, store: DurableWarmStore | DurableColdStore) -> None:
        super().__init__(store)
        self.remote = False  # each tier that is has its own retries
        self._tiered = store
        self._gate = Gate("this store")

    @classmethod
    async def open(cls, url: str) -> Self:
        warm, cold, durable, cool = _read(url)
        if durable == "cold":
            if "timeout=" not in warm:  # a cache is not worth waiting for
                warm = f"{warm}{'&' if '?' in warm else '?'}timeout=0"
            return cls(DurableColdStore(await Tier.reach("warm", warm), await Tier.reach("cold", cold), cool))
        return cls(DurableWarmStore(await Tier.reach("warm", warm), await Tier.reach("cold", cold), cool))

    async def close(self) -> None:
        await self._gate.close()
        await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._gate:
            return await work(*args, **kwargs)

    def tiers(self) -> dict[str, str]:
        """The URL of each tier, and whether it could be reached when it was last needed."""
        return {tier.name: tier.state() for tier in (self._tiered.warm, self._tiered.cold)}

    async def adopt(self, session: str) -> Head:
        """Continue from the cold tier's copy of a session that the warm tier has lost; what came later is given up."""
        return await self._tiered.adopt(session)


def _read(url: str) -> tuple[str, str, str, float]:
    """The URLs of both tiers, which of them makes a commit durable, and the seconds after which a session cools."""
    shown = without_secrets(url)
    # In a URL within a URL a plus is a plus: redis+sentinel://
    try:
        parts = parse_url(url.replace("+", "%2B"), options={"warm", "cold", "durable", "cool"})
    except UnknownStore as error:
        raise UnknownStore(f"{error} (write & as %26 in a tier's URL)") from None
    if parts.host or parts.path:
        raise UnknownStore(f"{shown}: remove the text between tiered:// and the ?")
    for tier in ("warm", "cold"):
        if "://" not in parts.options.get(tier, ""):
            raise UnknownStore(
                f"{shown}: {tier}= must be a store URL, as in "
                "tiered://?warm=redis://localhost&cold=postgresql://localhost/rooms (write & as %26 in it)"
            )
    if parts.options["warm"] == parts.options["cold"]:
        raise UnknownStore(f"{shown}: warm= and cold= are the same store; use two stores")
    durable = parts.options.get("durable", "warm")
    if durable not in ("warm", "cold"):
        raise parts.wrong("durable", "warm or cold")
    return parts.options["warm"], parts.options["cold"], durable, parts.seconds("cool", COOL_SECONDS)
