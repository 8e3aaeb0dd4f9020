"""Exact tokens: what it costs to collect them, and to recognise equal states."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.table import Table

from benchmarks.timing import Figure, interleaved, repeated
from stateroom.model import Exactness
from stateroom.rollout import SESSION, StoredRun, plan_run, run
from stateroom.session import History
from stateroom.store import open_store
from tests.servers.vllm import VLLMProcess

EPISODES = 20
"""Of each of the eight tasks of extraction."""

LATENCY = 0.1
"""Seconds that the server takes for an answer."""


async def tokens() -> list[Figure]:
    """Episodes whose exact tokens are recorded, against the same episodes without.

    A scripted server in a process of its own reports the tokens.
    """
    options = ("--answers", "extraction:reference", "--latency", str(LATENCY))
    with tempfile.TemporaryDirectory() as folder, VLLMProcess(*options) as server:
        without, exact = (partial(_seconds, Path(folder), server.url, wanted) for wanted in (None, "exact"))
        plain, whole = await interleaved(without, exact, rounds=5)
    detail = f"{1 / whole:,.0f}/s / {1 / plain:,.0f}/s"
    return [Figure("episodes with tokens against episodes without", whole / plain, 1.1, "at most", detail)]


async def _seconds(folder: Path, url: str, wanted: Exactness | None) -> float:
    """Seconds of an episode."""
    plan = plan_run(
        "extraction",
        model=f"chat:m@{url}",
        repeats=EPISODES,
        record_tokens=wanted,
        concurrency=32,
        output=folder / "run.jsonl",
        force=True,
    )
    start = perf_counter()
    report = await run(plan)
    assert report.failed == 0
    return (perf_counter() - start) / report.episodes


async def digests() -> Table:
    """The time to digest a state, which recognises equal states.

    There is no limit, since digests are made only on demand. The second column is the mean over the answers of an
    episode.
    """
    table = Table("digest of", "one state", "each answer of an episode", pad_edge=False)
    for env in ("counter", "office"):
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_run(env, limit=1, output=Path(folder) / "run.jsonl")
            await run(plan)
            (episode,) = StoredRun(plan.files).episodes()
            async with open_store(plan.store) as store:
                history, session = History(store), episode.row[SESSION]
                one = await repeated(partial(history.digest, session), 5)
                answers = len(await history.digests(session, ("message",)))
                whole = await repeated(partial(history.digests, session, ("message",)), 5)
            table.add_row(env, f"{one * 1e3:.2f} ms", f"{whole / answers * 1e3:.2f} ms")
    return table
