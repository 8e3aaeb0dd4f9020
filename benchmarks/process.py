"""What a process pays: the import, and the memory that expired sessions give back."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from benchmarks.timing import Figure

IMPORT = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
AUTHOR = "from stateroom import Environment, State, tool"
RUNNER = "from stateroom import Environment, Sessions, State, open_store, tool"

RESIDENT = """
import ctypes, gc

libc = ctypes.CDLL(None)

def resident():
    gc.collect()
    libc.malloc_trim(0)  # pages that the C library only keeps for later are not in use
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
"""
"""A function for a program: the bytes of memory that its process uses."""

MEMORY = """
import asyncio
from stateroom import SessionLimits, Sessions, open_store
from stateroom.gallery import CounterEnvironment

async def wave(sessions, number):
    for _ in range(number):
        await sessions.seed({"initial_count": 0, "expected_count": 0})

async def main():
    now = 0.0
    async with open_store("memory://") as store:
        sessions = Sessions(CounterEnvironment(), store, SessionLimits(ttl=60, now=lambda: now))
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
    """The import of Stateroom against the import of pydantic.

    Both packages load most of their code when a name is first used, so the first line alone says little: the second
    has the names that an author imports, the third those of a program that runs sessions.
    """
    model = "from pydantic import BaseModel"
    return [
        _compared("import stateroom against import pydantic", "import stateroom", "import pydantic", 3),
        _compared("the same with an author's names", AUTHOR, model, 2.5),
        _compared("the same with sessions and a store", RUNNER, model, 3),
    ]


def _compared(what: str, ours: str, theirs: str, most: float) -> Figure:
    rounds = [(_seconds(ours), _seconds(theirs)) for _ in range(12)][1:]
    mine, other = (median(seconds) for seconds in zip(*rounds, strict=True))
    return Figure(what, mine / other, most, "at most", f"{mine * 1000:.0f} ms / {other * 1000:.0f} ms")


def _seconds(statement: str) -> float:
    return float(python(IMPORT.format(statement)))


async def memory() -> list[Figure]:
    """Memory before 100,000 sessions were seeded, and after they expired and were swept.

    Memory is the resident set of the process, after the C library was asked to return free pages. A server asks for
    this itself.
    """
    before, full, after = sorted(
        (tuple(map(int, python(RESIDENT + MEMORY).split())) for _ in range(3)), key=lambda run: run[2]
    )[1]
    detail = f"{after >> 20} MB after, {full >> 20} MB with all, {before >> 20} MB before"
    return [Figure("memory after 100,000 expired sessions against before", after / before, 1.1, "at most", detail)]


def python(code: str) -> str:
    """What a new process prints that runs some code."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
