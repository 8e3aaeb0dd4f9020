"""The places where state can live, side by side. There are no bars here."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import quote

from rich.table import Table

from benchmarks.environments import COUNTER_TASK, ArchiveEnvironment, increment
from benchmarks.stores import open_stores
from stateroom import Session, Sessions
from stateroom.gallery import CounterEnvironment
from stateroom.store import Size, Store
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server

SESSIONS, RECORDS = 64, 1000
ROUNDS, TURN = 5, 0.25
"""In each round, every place has a turn of so many seconds with one session, and another with all of them."""


@dataclass
class Place:
    """One place: what was begun there, and what its turns have shown."""

    store: Store
    sessions: list[Session[Any]]
    large: str
    """The id of a session of 1 MB."""
    before: dict[str, Size]
    """What was in the store before the first turn."""
    calls: int = 0
    lone: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)

    @classmethod
    async def begin(cls, store: Store) -> Place:
        """Make all sessions, and let each make a call."""
        counters = Sessions[Any](CounterEnvironment(), store)
        begun = [await counters.seed(COUNTER_TASK) for _ in range(SESSIONS)]
        large = await Sessions[Any](ArchiveEnvironment(), store).seed({"records": RECORDS})
        await asyncio.gather(*(increment(session) for session in begun))
        return cls(store, begun, large.id, await store.maintenance.sizes())

    async def take_turn(self) -> None:
        """One session alone, all of them at once, and the large one in a worker that does not know it."""
        end = time.perf_counter() + TURN
        while (start := time.perf_counter()) < end:
            await increment(self.sessions[0])
            self.lone.append(time.perf_counter() - start)
            self.calls += 1
        start = time.perf_counter()
        done = sum(await asyncio.gather(*(_increments(session, start + TURN) for session in self.sessions)))
        self.rates.append(done / (time.perf_counter() - start))
        self.calls += done
        start = time.perf_counter()
        opened = await Sessions[Any](ArchiveEnvironment(), self.store).open(self.large)
        self.cold.append(time.perf_counter() - start)
        assert len(opened.state.records) == RECORDS

    async def row(self) -> tuple[str, ...]:
        """The medians, and what each call has added to the store."""
        grown = _growth(self.before, await self.store.maintenance.sizes()) / self.calls
        lone, cold = (f"{1000 * median(seconds):,.2f} ms" for seconds in (self.lone, self.cold))
        return lone, f"{median(self.rates):,.0f}", cold, f"{grown:,.0f}"


async def places() -> Table:
    """The stores side by side, in turns so that all see the same machine; a commit is a whole call of the counter.

    - **A lone commit** is what one agent waits for; a model's answer takes far longer. Over a network, add a round
      trip.
    - **64 sessions** share work: SQLite syncs all waiting commits at once, Redis and PostgreSQL receive them in one
      message. Files and objects cannot share, since each session has its own.
    - **Opening** is the cost of a session's first use in a worker, here with a state of 1 MB.
    - **Bytes** are those of a small call, with indexes; for memory and Redis, in memory. The first call adds as many
      as the thousandth, whatever the size of the state.
    - **S3** is moto, a server for tests, on the same machine and in memory: it shows the work that Stateroom causes. A
      request to a real bucket takes tens of milliseconds.

    SQLite, PostgreSQL, files and the Redis with `appendfsync always` reach the disk before they acknowledge.
    """
    table = Table(pad_edge=False)
    for column in ("store", "a lone commit", "commits/s, 64 sessions", "opening 1 MB", "bytes a commit"):
        table.add_column(column, justify="left" if column == "store" else "right")
    async with _stores() as stores:
        begun = {name: await Place.begin(store) for name, store in stores.items()}
        for _ in range(ROUNDS):
            for place in begun.values():
                await place.take_turn()
        for name, place in begun.items():
            table.add_row(name, *await place.row())
    return table


async def _increments(session: Session[Any], end: float) -> int:
    """Call until a time, and tell how often."""
    done = 0
    while time.perf_counter() < end:
        await increment(session)
        done += 1
    return done


def _growth(before: dict[str, Size], after: dict[str, Size]) -> int:
    """How many bytes more a store takes: its parts, or the whole with indexes and the like, where it tells of one."""
    grown = {kind: size.bytes - before[kind].bytes for kind, size in after.items()}
    wholes = [grown.pop(kind) for kind in ("file", "disk", "objects") if kind in grown]
    return max(sum(grown.values()), *wholes, 0)


@asynccontextmanager
async def _stores() -> AsyncIterator[dict[str, Store]]:
    """A store in each place, by name. SQLite, PostgreSQL, files and one Redis sync before they acknowledge."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory())
        quick, synced = (servers.enter_context(RedisServer(durable=durable)) for durable in (False, True))
        postgresql = servers.enter_context(PostgreSQLServer(quick=False))
        warm, cold = synced.url.removesuffix("0") + "1", f"{postgresql.url}?schema=cold"
        urls = {
            "memory": "memory://",
            "SQLite": f"sqlite:///{folder}/rooms.db",
            "Redis, in memory only": quick.url,
            "Redis, appendfsync always": synced.url,
            "PostgreSQL": postgresql.url,
            "files": f"file://{folder}/rooms",
            "S3 (moto)": servers.enter_context(S3Server()).url,
            "tiered: that Redis over PostgreSQL": f"tiered://?warm={quote(warm)}&cold={quote(cold)}",
        }
        async with open_stores(urls) as stores:
            yield stores
