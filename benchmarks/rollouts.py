"""The index of a large run, against reading its bytes and splitting them into lines; and its pages over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from benchmarks.studio_process import serving
from benchmarks.timing import Figure
from stateroom.jsonl import line_of
from stateroom.rollout import EpisodeFilter, RunFiles, RunIndex, Search

TASKS, REPEATS = 12_500, 8
ITEMS = 12
ROUNDS = 3
PAUSE = 0.01
"""Seconds between two requests for rows that are not there yet."""
SORTS = ("reward", "tokens", "seconds", "session")
CHUNK = 8 << 20


async def runs_index() -> list[Figure]:
    """The index of a run of 100,000 rollouts (1 GB), and Studio's pages from it.

    The whole index is compared with reading the file and splitting it into lines. A page's time is
    that from the request over HTTP to its rows, against a limit in milliseconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder) / "large.jsonl")
        write_run(files, TASKS, REPEATS)
        size = files.rollouts.stat().st_size
        splits, wholes = [], []
        requests: dict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):  # in turns, so that a busy machine slows all of them
            splits.append(_timed(lambda: _split(files.rollouts)))
            files.index.unlink(missing_ok=True)
            wholes.append(_timed(lambda: _indexed(files)))
            files.index.unlink()
            async with serving("--runs", folder) as root, aiohttp.ClientSession() as client:
                pages = _Pages(client, root)
                requests["first"].append(await pages.until(100))
                await pages.until(TASKS * REPEATS)
                requests["filter"].append(await pages.timed(low=0.25, below=0.5, session="true"))
                for name in SORTS:
                    requests[name].append(await pages.timed(sort=name))
    split, whole = median(splits), median(wholes)
    taken = {name: median(each) for name, each in requests.items()}
    slowest = max(SORTS, key=taken.__getitem__)
    told = f"{TASKS * REPEATS:,} rollouts, {size / 1e9:.2f} GB"
    return [
        Figure(
            f"the whole index against splitting lines, {told}", whole / split, 10, "at most", _seconds(whole, split)
        ),
        Figure("the same against 10 s", whole / 10, 1, "at most", f"{whole:.2f} s"),
        _request("its first rows", taken["first"], 0.5),
        _request("a filter's page", taken["filter"], 0.15),
        _request(f"a sort's page, the slowest by {slowest}", taken[slowest], 0.15),
    ]


class _Pages:
    """Pages of the run, as Studio's page asks for them."""

    def __init__(self, client: aiohttp.ClientSession, root: str) -> None:
        self._client = client
        self._url = f"{root}/studio/api/runs/large/rollouts"

    async def read(self, **query: Any) -> dict[str, Any]:
        async with self._client.get(self._url, params=query) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()  # type: ignore[no-any-return]

    async def until(self, total: int) -> float:
        """Ask until there are so many rows; the seconds that it took."""
        start = time.perf_counter()
        while (await self.read())["total"] < total:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(PAUSE)
        return time.perf_counter() - start

    async def timed(self, **query: Any) -> float:
        """Seconds of a page from the middle of what is found, which nobody has asked for before."""
        start = time.perf_counter()
        assert len((await self.read(**query, offset=TASKS * REPEATS // 8))["rollouts"]) == 100
        return time.perf_counter() - start


def _request(what: str, taken: float, bar: float) -> Figure:
    told = f"{taken * 1000:.0f} ms / {bar * 1000:.0f} ms"
    return Figure(f"{what}, over HTTP", taken / bar, 1, "at most", told)


def write_run(files: RunFiles, tasks: int, repeats: int) -> None:
    """Write a run with so many tasks, each of them with so many rollouts."""
    files.description.write_text(json.dumps({"environment": "search", "model": "m", "episodes": tasks * repeats}))
    _write(files.rollouts, tasks, repeats)


def _indexed(files: RunFiles) -> None:
    index = RunIndex(files)
    while index.advance():
        pass
    assert Search(index).page(EpisodeFilter())[1] == TASKS * REPEATS


def _write(path: Path, tasks: int, repeats: int) -> None:
    rng = random.Random(0)
    text = "".join(rng.choices('etaoin shrdlu"\n', k=500))
    call = {"type": "function_call", "name": "search", "call_id": "call_0", "arguments": '{"query": "ships"}'}
    result = {"type": "function_call_output", "call_id": "call_0", "output": text}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    with path.open("wb") as file:
        for number in range(tasks * repeats):
            row = {
                "responses_create_params": {"input": text},
                "expected": number,
                "_ng_task_index": number // repeats,
                "_ng_rollout_index": number % repeats,
                "_stateroom_session": f"{rng.getrandbits(96):024x}",
                "reward": rng.random(),
                "tool_calls": ITEMS,
                "truncated": 0,
                "input_tokens": rng.randrange(9000),
                "output_tokens": rng.randrange(900),
                "total_tokens": rng.randrange(9900),
                "_stateroom_times": {"wall": rng.random(), "model": 0.1, "tool": 0.1},
                "response": {"model": "m", "status": "completed", "output": [*[call, result] * ITEMS, answer]},
            }
            file.write(line_of(row))


def _split(path: Path) -> int:
    """Read a file's bytes and split them into lines."""
    count = 0
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            count += len(lines)
    return count


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _seconds(first: float, second: float) -> str:
    return f"{first:.2f} s / {second:.2f} s"
