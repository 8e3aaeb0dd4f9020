"""What a long life costs on each store: bytes for each step of a conversation, forks of a large state, a cold load."""

from __future__ import annotations

import random
import string
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.environments import ArchiveEnvironment, DialogueEnvironment, increment, seed_counter
from benchmarks.peers import saving
from benchmarks.stores import fresh_stores
from benchmarks.timing import Figure, elapsed, interleaved, repeated, slowdown
from stateroom import Session, Sessions
from stateroom.adapters.langgraph import StateroomSaver
from stateroom.gallery import CounterEnvironment
from stateroom.session import History
from stateroom.store import Store
from tests.servers.postgresql import PostgreSQLServer

STEPS, MESSAGE = 1000, 500
RECORDS = 10_000
FORKS, WRITTEN = 40, 400
ENTRIES = 10_000


async def conversation() -> list[Figure]:
    """A conversation of 1,000 messages of 500 bytes on each store, and the same in LangGraph's savers.

    The first line of a store compares what late and early messages add. The second compares all that the store has
    written with the payload of 500 kB. LangGraph's own saver stores the whole conversation at each step; ours stores
    what is new.
    """
    theirs = await _langgraph()
    async with fresh_stores() as stores:
        return [
            figure for name, store in stores.items() for figure in await _conversation(name, store, theirs.get(name))
        ]


async def _conversation(name: str, store: Store, theirs: Saved | None) -> list[Figure]:
    before = await _total(store)
    session = await Sessions[Any](DialogueEnvironment(), store).seed({})
    sizes = [(await store.size(session.id)).bytes]
    for number, text in enumerate(_texts(), 1):
        await session.call("say", {"text": text})
        if number <= 15 or number > STEPS - 15:
            sizes.append((await store.size(session.id)).bytes)
    early, late = _median_step(sizes[5:16]), _median_step(sizes[-10:])
    total = await _total(store) - before
    detail = f"{total:,} B" + (f"; LangGraph's saver {theirs.bytes:,} B" if theirs else "")
    flat, whole = "bytes of step 1,000 against step 10", "bytes of 1,000 steps against their payload"
    return [
        Figure(f"{flat}, {name}", late / early, 1.5, "at most", f"{late:,.0f} B / {early:,.0f} B"),
        Figure(f"{whole}, {name}", total / (STEPS * MESSAGE), 3, "at most", detail),
        *(await _saver(name, store, theirs) if theirs else []),
    ]


async def _saver(name: str, store: Store, theirs: Saved) -> list[Figure]:
    """The same conversation as LangGraph hands it to a saver: all messages at every step."""
    before = await _total(store)
    seconds = await _save(StateroomSaver(store))
    ours = Saved(await _total(store) - before, seconds)
    what = f"1,000 steps of LangGraph's own saver against ours, {name}"
    speed = f"{ours.seconds:.1f} s / {theirs.seconds:.1f} s"
    return [
        Figure(f"bytes of {what}", theirs.bytes / ours.bytes, 50, "at least", f"{ours.bytes:,} B / {theirs.bytes:,} B"),
        Figure(f"time of {what}", theirs.seconds / ours.seconds, 1, "at least", speed),
    ]


def _texts() -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(string.ascii_letters, k=MESSAGE)) for _ in range(STEPS)]


def _median_step(sizes: list[int]) -> float:
    return median(after - before for before, after in pairwise(sizes))


async def _total(store: Store) -> int:
    """All that a store takes, with what indexes and the like add to it."""
    sizes = await store.maintenance.sizes()
    whole = [sizes[name] for name in ("file", "disk", "objects") if name in sizes]
    return sum(size.bytes for size in whole or sizes.values())


class Saved(NamedTuple):
    """What a saver made of a conversation."""

    bytes: int
    seconds: float


async def _langgraph() -> dict[str, Saved]:
    """The same conversation as LangGraph's savers keep it, by store."""
    with tempfile.TemporaryDirectory() as folder, PostgreSQLServer() as server:
        path = Path(folder) / "langgraph.db"
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            seconds = await _save(saver)
        on_sqlite = Saved(path.stat().st_size, seconds)
        async with AsyncPostgresSaver.from_conn_string(server.url) as base:
            await base.setup()
            connection: Any = base.conn
            empty = await _database_size(connection)
            seconds = await _save(base)
            return {"SQLite": on_sqlite, "PostgreSQL": Saved(await _database_size(connection) - empty, seconds)}


async def _save(saver: Any) -> float:
    step = saving(saver, _texts())
    return STEPS * await repeated(step, STEPS)


async def _database_size(connection: Any) -> int:
    cursor = await connection.execute("SELECT pg_database_size(current_database()) AS bytes")
    return int((await cursor.fetchone())["bytes"])


async def forks() -> list[Figure]:
    """A fork of a 10 MB state at step 1,000, against a fork of an empty session.

    Forks are made forty at a time; the times are those of one. The second line of a store is what one fork writes.
    """
    async with fresh_stores() as stores:
        return [figure for name, store in stores.items() for figure in await _forks(name, store)]


async def _forks(name: str, store: Store) -> list[Figure]:
    sessions = Sessions[Any](ArchiveEnvironment(), store)
    large, empty = await sessions.seed({"records": RECORDS}), await sessions.seed({"records": 0})
    for index in range(STEPS - 1):
        await large.call("renumber", {"index": index})
    before = await _total(store)
    await large.fork(n=WRITTEN)
    written = (await _total(store) - before) / WRITTEN
    bare, ours = await interleaved(lambda: _fork(empty), lambda: _fork(large), 9)
    return [
        slowdown(f"a fork of 10 MB against one of nothing, {name}", ours, bare, 2),
        Figure(f"kB written for it, {name}", written / 1000, 2, "at most", f"{written:,.0f} B"),
    ]


async def _fork(session: Session[Any]) -> float:
    return await elapsed(session.fork(n=FORKS)) / FORKS


async def cold() -> list[Figure]:
    """Opening a session of 10,000 entries in a process that does not know it, on each store.

    It is compared with reading the session's last snapshot, which opening does too. Opening also reads the entries
    since then, the task, and whether there is a verdict. The S3 server of the tests is left out, since 10,000 calls
    take it minutes.
    """
    async with fresh_stores() as stores:
        del stores["S3"]  # the server of the tests takes minutes for 10,000 calls; files are the same code
        return [await _cold(name, store) for name, store in stores.items()]


async def _cold(name: str, store: Store) -> Figure:
    session = await seed_counter(store)
    await increment(session, ENTRIES)
    snapshot = (await store.load(session.id)).snapshot
    assert snapshot is not None
    revision = snapshot.revision

    async def opened() -> float:
        elsewhere = Sessions[Any](CounterEnvironment(), store)
        start = time.perf_counter()
        found = await elsewhere.open(session.id)
        seconds = time.perf_counter() - start
        assert found.state.value == ENTRIES
        return seconds

    async def read() -> float:
        return await elapsed(History(store).document(session.id, revision))

    bare, ours = await interleaved(read, opened, 101)
    what = f"opening 10,000 entries against reading the last snapshot, {name}"
    return slowdown(what, ours, bare, 3)
