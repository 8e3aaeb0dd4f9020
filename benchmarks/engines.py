"""Engines: what a second process gains, what Ray costs, and what the driver of many episodes keeps in memory."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.environments import WORK_TASK, WorkEnvironment
from benchmarks.timing import Figure, interleaved, speedup
from stateroom.rollout import plan_run, run
from tests.servers.redis import RedisServer

EPISODES = 300
"""Of each worker."""
FEW, MANY = 1_000, 50_000

DRIVER = """
import asyncio, re
from stateroom.rollout import plan_run, run
plan = plan_run("counter", repeats={}, engine="processes:2", store="memory://", concurrency=32, output="run.jsonl")
assert asyncio.run(run(plan)).failed == 0
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
SETTLED = 0.2
"""The share of the episodes at the beginning and at the end that is not measured: workers start, and run dry."""


async def engines() -> list[Figure]:
    """Episodes that keep a core busy, in two processes against one.

    With two processes both cores are busy all the time; what is missing from 2 is the share of the driver and of
    Redis, which run on the same cores. On a disk SQLite saturates: all workers write to one log, which reaches the
    disk once at a time. For several cores, use Redis or PostgreSQL. The last line is the memory of the driver.
    """
    figures = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        RedisServer() as redis,
    ):
        stores = {"Redis": (folder, redis.url), "SQLite in memory": (memory, None), "SQLite on a disk": (folder, None)}
        rates = {name: await _gain(Path(output), url) for name, (output, url) in stores.items()}
        for name, (one, two) in rates.items():
            what = f"episodes that keep a core busy, {name}: two processes against one"
            bar = 0.8 if name == "SQLite on a disk" else 1.7  # its one log reaches the disk once at a time
            figures.append(speedup(what, two, one, bar))
        figures.append(await _memory())
    return figures


async def _gain(folder: Path, store: str | None) -> tuple[float, float]:
    """Seconds per episode with one process and with two."""
    one, two = (partial(_seconds, folder, f"processes:{number}", store, number * EPISODES) for number in (1, 2))
    return await interleaved(one, two, rounds=3)


async def _memory() -> Figure:
    """The most memory that a driver takes, for many episodes and for few."""
    few, many = [int(await _peak(episodes)) for episodes in (FEW, MANY)]
    told = f"{many / 1000:.0f} MB / {few / 1000:.0f} MB"
    return Figure(f"memory of the driver of {MANY:,} episodes against {FEW:,}", many / few, 1.3, "at most", told)


async def _peak(episodes: int) -> str:
    command = [sys.executable, "-c", DRIVER.format(episodes // 8)]
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
    return said.decode().split()[-1]


async def on_ray() -> list[Figure]:
    """Episodes on Ray against episodes in processes, on two workers of each kind.

    The episodes are the counter's, which take no time themselves, so this is the cost of the engine.
    """
    import ray  # noqa: PLC0415 - an extra

    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="WARNING")
    try:
        with tempfile.TemporaryDirectory() as folder:
            counter = partial(_seconds, Path(folder), store="memory://", repeats=1_000, environment="counter")
            processes, ours = await interleaved(partial(counter, "processes:2"), partial(counter, "ray"), 5)
    finally:
        ray.shutdown()
    overhead = 2 * (ours - processes) * 1000
    return [
        speedup("counter episodes on Ray against processes, two workers each", ours, processes, 0.8),
        Figure("what Ray adds to an episode, against 5 ms", overhead / 5, 1, "at most", f"{overhead:.2f} ms"),
    ]


async def _seconds(
    folder: Path, engine: str, store: str | None, repeats: int, environment: Any = WorkEnvironment
) -> float:
    """Seconds per episode, while all workers are busy."""
    given: dict[str, Any] = {} if environment == "counter" else {"input": [WORK_TASK], "model": "gold"}
    plan = plan_run(
        environment,
        **given,
        repeats=repeats,
        concurrency=16,
        store=store,
        engine=engine,
        output=folder / "run.jsonl",
        force=True,
    )
    ended: list[float] = []
    report = await run(plan, lambda finished: ended.append(perf_counter()))
    assert report.failed == 0, report.first_error
    first, last = int(SETTLED * len(ended)), int((1 - SETTLED) * len(ended))
    return (ended[last] - ended[first]) / (last - first)
