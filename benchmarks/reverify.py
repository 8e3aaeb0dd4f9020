"""Judging episodes again, against running them."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.timing import Figure, elapsed, interleaved
from stateroom import open_store
from stateroom.gallery import CounterEnvironment
from stateroom.rollout import RunFiles, generate_tasks, plan_run, rescore_rollouts, run

EPISODES = 1000


async def rewards() -> list[Figure]:
    """Running 1,000 episodes of the counter on SQLite, against rescoring them.

    The episodes have three calls on average, of a tool that does almost nothing: the more a tool does, the more
    rescoring saves. The ratio varies from 4.5 to 7.5.
    """
    tasks = generate_tasks(CounterEnvironment, EPISODES, 0)
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()
        newest = RunFiles(Path())

        async def ran() -> float:
            nonlocal newest
            newest = RunFiles(Path(folder) / f"run-{next(numbers)}.jsonl")
            plan = plan_run("counter", model="reference", input=tasks, output=newest.rollouts)
            return await elapsed(run(plan))

        async def judged() -> float:
            files = RunFiles(Path(folder) / f"new-{next(numbers)}.jsonl")
            start = time.perf_counter()
            async with open_store(f"sqlite:///{newest.sessions}") as store:
                report = await rescore_rollouts(CounterEnvironment(), newest.rollouts, files, store)
            seconds = time.perf_counter() - start
            assert len(report.rows) == EPISODES
            return seconds

        running, judging = await interleaved(ran, judged, 5)
    detail = f"{running:.2f} s / {judging:.2f} s"
    return [Figure("running 1,000 episodes against judging them again", running / judging, 5, "at least", detail)]
