"""The patterns of state side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.table import Table

from benchmarks.stores import fresh_stores
from benchmarks.timing import elapsed
from stateroom import Environment, Event, Session, Sessions, State, applies, open_store, tool
from stateroom.store import Store
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer

LONE, SESSIONS, CALLS, OPENED = 300, 64, 20, 20


class Account(State):
    balance: int = 0


class Bank(Environment[Account]):
    """Keeps money."""

    @tool
    def deposit(self, state: Account, amount: int) -> int:
        """Add to the balance."""
        state.balance += amount
        return state.balance

    def verify(self) -> float:
        return 0.0


class Deposited(Event):
    amount: int


class Ledger(State):
    balance: int = 0

    @applies(Deposited)
    def deposited(self, event: Deposited) -> None:
        self.balance += event.amount


class EventBank(Environment[Ledger]):
    """Keeps money, and knows how it came."""

    @tool
    def deposit(self, state: Ledger, amount: int) -> int:
        """Add to the balance."""
        state.emit(Deposited(amount=amount))
        return state.balance

    def verify(self) -> float:
        return 0.0


class Abacus(Environment):
    """Adds, and remembers nothing."""

    @tool
    def deposit(self, amount: int) -> int:
        """Add."""
        return amount

    def verify(self) -> float:
        return 0.0


class Costs(NamedTuple):
    """What a pattern costs."""

    lone: float
    """Seconds of a call when nothing else is going on."""
    rate: float
    """Calls in a second, in many sessions at once."""
    bytes: float
    """Bytes that a call adds to the store."""
    cold: float
    """Seconds until a process that does not know the session has opened it."""


async def measure(environment: Environment[Any, Any], store: Store) -> Costs:
    sessions = Sessions[Any](environment, store)
    many = [await sessions.seed({}) for _ in range(SESSIONS)]
    for session in many:
        await _deposit(session)
    lone = median([await elapsed(_deposit(many[0])) for _ in range(LONE)])
    took = await elapsed(asyncio.gather(*(_deposit(session, CALLS) for session in many)))
    if environment.state_type is None:
        return Costs(lone, SESSIONS * CALLS / took, 0, 0)
    before = await store.size(many[1].id)
    await _deposit(many[1], 100)
    grown = (await store.size(many[1].id)).bytes - before.bytes

    cold = median([await elapsed(Sessions[Any](environment, store).open(many[2].id)) for _ in range(OPENED)])
    return Costs(lone, SESSIONS * CALLS / took, grown / 100, cold)


async def _deposit(session: Session[Any], times: int = 1) -> None:
    for _ in range(times):
        assert (await session.call("deposit", {"amount": 1})).ok


@asynccontextmanager
async def _tiered() -> AsyncIterator[Store]:
    with RedisServer() as warm, PostgreSQLServer() as cold:
        url = f"tiered://?warm={quote(warm.url, safe='')}&cold={quote(cold.url, safe='')}"
        async with open_store(url) as store:
            yield store


async def patterns() -> Table:
    """The patterns of state side by side: calls that add to a number.

    The columns are the time of a call when nothing else runs, the calls of 64 sessions at once, the bytes that a call
    adds to the store, and the time to open the session in a new process. An event is applied twice: for the tool, and
    at the end of the call, to check that only events changed the state.
    """
    table = Table("pattern", "store", "a call", "calls/s, 64 sessions", "bytes a call", "opening", pad_edge=False)
    async with fresh_stores() as persisted, open_store("memory://") as memory, _tiered() as tiered:
        rows: list[tuple[str, str, Environment[Any, Any], Store]] = [
            ("stateless", "none", Abacus(), memory),
            ("in memory", "memory", Bank(), memory),
            ("persisted", "SQLite", Bank(), persisted["SQLite"]),
            ("event-sourced", "memory", EventBank(), memory),
            ("event-sourced", "SQLite", EventBank(), persisted["SQLite"]),
            ("tiered", "Redis over PostgreSQL", Bank(), tiered),
        ]
        for pattern, name, environment, store in rows:
            _add(table, pattern, name, await measure(environment, store))
    return table


def _add(table: Table, pattern: str, name: str, costs: Costs) -> None:
    size, cold = (f"{costs.bytes:,.0f}", f"{costs.cold * 1e6:,.0f} µs") if costs.cold else ("", "")
    table.add_row(pattern, name, f"{costs.lone * 1e6:,.0f} µs", f"{costs.rate:,.0f}", size, cold)
