"""What SQLite costs: bytes and time over a long session, and durable commits of many sessions at once."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import string
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environments import COUNTER_TASK, DialogueEnvironment, increment
from benchmarks.timing import Figure, elapsed, interleaved, slowdown, speedup
from stateroom import Sessions, open_store
from stateroom.gallery import CounterEnvironment
from stateroom.store import Entry, Store

CALLS, PAYLOAD = 1000, 1000
SESSIONS, STEPS = 64, 40


BARE = """
CREATE TABLE heads (id TEXT PRIMARY KEY, revision INTEGER) WITHOUT ROWID;
CREATE TABLE entries (
    session TEXT, revision INTEGER, kind TEXT, at REAL, call_id TEXT, body BLOB, PRIMARY KEY (session, revision)
);
"""


async def growth() -> list[Figure]:
    """A session of 1,000 calls that append 1 kB each, on SQLite.

    The payload is written twice: in the log, and in snapshots as the state grows. Snapshots stay below one and a half
    times the log, so the total grows linearly. The second line compares the last calls with the first.
    """
    rng = random.Random(1)
    texts = ["".join(rng.choices(string.ascii_letters, k=PAYLOAD)) for _ in range(CALLS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "growth.db"
        async with open_store(f"sqlite:///{path}") as store:
            sessions = Sessions[Any](DialogueEnvironment(), store)
            await _append(sessions, texts[:50])  # past the tool's first runs on a thread
            await sessions.store.sweep(time.time() + 2 * sessions.runtime.limits.ttl)
            seconds = await _append(sessions, texts)
        size = path.stat().st_size
    early, late = median(seconds[:100]), median(seconds[-100:])
    return [
        Figure(
            "bytes on disk against the payload, 1,000 calls of 1 kB",
            size / (CALLS * PAYLOAD),
            3,
            "at most",
            f"{size:,} B",
        ),
        slowdown("calls 900-1,000 against calls 1-100", late, early, 1.5),
    ]


async def _append(sessions: Sessions[Any], texts: list[str]) -> list[float]:
    session = await sessions.seed({})
    seconds = []
    for text in texts:
        start = time.perf_counter()
        await session.call("say", {"text": text})
        seconds.append(time.perf_counter() - start)
    return seconds


async def commits() -> list[Figure]:
    """Durable commits of 64 sessions at once on SQLite, against a bare loop.

    `synchronous=FULL`: each batch reaches the disk. The loop writes the same rows, the entry and the head's revision,
    64 to a transaction, in one thread and without checks. Our commits need both cores: with other work on the machine
    the ratio is 0.48 to 0.60.
    """
    with tempfile.TemporaryDirectory() as folder:
        bare = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode = WAL")
        bare.execute("PRAGMA synchronous = FULL")
        bare.executescript(BARE)
        async with open_store(f"sqlite:///{folder}/ours.db") as store:
            sessions = Sessions[Any](CounterEnvironment(), store)
            handles = [await sessions.seed(COUNTER_TASK) for _ in range(SESSIONS)]
            bare.executemany("INSERT INTO heads VALUES (?, 0)", [(handle.id,) for handle in handles])
            entry = await _entry_of_a_call(handles[0], store)
            written = 0

            async def loop() -> float:
                nonlocal written
                start = time.perf_counter()
                for _ in range(STEPS):
                    written += 1
                    bare.execute("BEGIN IMMEDIATE")
                    for handle in handles:
                        row = (handle.id, written, entry.kind, entry.at, entry.call_id, entry.body)
                        bare.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
                        bare.execute("UPDATE heads SET revision = ? WHERE id = ?", (written, handle.id))
                    bare.execute("COMMIT")
                return (time.perf_counter() - start) / (STEPS * SESSIONS)

            async def ours() -> float:
                steps = asyncio.gather(*(increment(handle, STEPS) for handle in handles))
                return await elapsed(steps) / (STEPS * SESSIONS)

            bare_seconds, our_seconds = await interleaved(loop, ours, rounds=21)
        bare.close()
    return [speedup("durable commits/s, 64 sessions, against a bare loop", our_seconds, bare_seconds, 0.55)]


async def _entry_of_a_call(session: Any, store: Store) -> Entry:
    await increment(session)
    return (await store.entries(session.id, after=1))[0]
