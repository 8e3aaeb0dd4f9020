"""What a process pays: the import, and the memory that expired sessions give back."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from benchmarks.timing import Figure

IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"

MEMORY = """
import asyncio, gc, time
from stateroom import Sessions, open_store
from stateroom.gallery.counter import CounterEnvironment

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

async def wave(sessions, number):
    for _ in range(number):
        await sessions.seed({"initial_count": 0, "expected_count": 0})

async def main():
    now = 0.0
    async with open_store("memory://") as store:
        sessions = Sessions(CounterEnvironment(), store, ttl=60, hot=1_000_000, now=lambda: now)
        await wave(sessions, 1000)
        now += 100
        await sessions.sweep()
        before = resident()
        await wave(sessions, 100_000)
        full = resident()
        now += 100
        await sessions.sweep()
        print(before, full, resident())

asyncio.run(main())
"""


async def imports() -> list[Figure]:
    """`import stateroom` against `import pydantic`, each in a fresh process."""
    rounds = [(_seconds("pydantic"), _seconds("stateroom")) for _ in range(12)][1:]
    theirs, ours = (median(seconds) for seconds in zip(*rounds, strict=True))
    detail = f"{ours * 1000:.0f} ms / {theirs * 1000:.0f} ms"
    return [Figure("import stateroom against import pydantic", ours / theirs, 3, "at most", detail)]


def _seconds(module: str) -> float:
    return float(_python(IMPORT.format(module)))


async def memory() -> list[Figure]:
    """Memory before and after 100,000 sessions were seeded, expired and swept."""
    before, full, after = map(int, _python(MEMORY).split())
    detail = f"{after >> 20} MB after, {full >> 20} MB with all, {before >> 20} MB before"
    return [Figure("memory after 100,000 expired sessions against before", after / before, 1.1, "at most", detail)]


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
