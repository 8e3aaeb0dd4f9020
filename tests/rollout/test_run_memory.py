"""The memory of a run: it does not grow with the episodes, but for a few bytes each."""

import asyncio
import gc
import json
import os
import tracemalloc
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom import Environment, Episode, Verdict
from stateroom.errors import BadTask
from stateroom.model import Answer, Model, ModelSource, Request, message
from stateroom.rollout import Run, RunFiles, run
from stateroom.rollout.index import RunIndex
from stateroom.rollout.lazy import SpooledRows
from stateroom.rollout.runner import what_is_left
from tests.messages import raises
from tests.plans import make_run

MOST = 250
"""Bytes of memory per episode. Some 70 are strings that the JSON parser caches, up to a number of them."""


class Guess(Environment):
    """Has no state, so that all that is kept is the run's."""

    name = "guess"

    def verify(self, episode: Episode) -> Verdict:
        return Verdict(1.0, reason="a guess", details={"said": "x" * 100})


class Guesser(Model):
    """Says the same each time."""

    name = "guesser"

    async def answer(self, request: Request) -> Answer:
        return Answer([message("a guess")])


def plan(folder: Path, repeats: int, tasks: int = 4, **more: Any) -> Run:
    return make_run(
        environment=Guess(),
        model=ModelSource("guesser", lambda seed: Guesser()),
        tasks=[{"responses_create_params": {"input": "Guess."}, "hint": "h" * 100} for _ in range(tasks)],
        files=RunFiles(folder / f"{repeats}-{tasks}.jsonl"),
        repeats=repeats,
        **more,
    )


def peak_of(planned: Run) -> int:
    """The most bytes that a run has in memory at once."""
    gc.collect()
    tracemalloc.start()
    try:
        report = asyncio.run(run(planned))
        assert len(report.rows) == report.episodes
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.more("time")
@pytest.mark.parametrize("few_tasks", [True, False])
def test_an_episode_takes_few_bytes_of_a_runs_memory(few_tasks: bool, tmp_path: Path) -> None:
    def planned(episodes: int) -> Run:
        return plan(tmp_path, episodes // 4) if few_tasks else plan(tmp_path, 1, episodes)

    asyncio.run(run(planned(4)))  # what is imported and cached on first use
    small, large = peak_of(planned(400)), peak_of(planned(2400))
    assert (large - small) / 2000 < MOST


@pytest.mark.more("time")
def test_an_episode_takes_few_bytes_of_a_resumed_runs_memory(tmp_path: Path) -> None:
    peaks = []
    for episodes in (4, 400, 2400):
        planned = plan(tmp_path, episodes // 4, resume=True)
        asyncio.run(run(planned))
        lines = planned.files.rollouts.read_bytes().splitlines(keepends=True)
        planned.files.rollouts.write_bytes(b"".join(lines[:-2]))
        peaks.append(peak_of(planned))
    assert (peaks[2] - peaks[1]) / 2000 < MOST


# Rows in a file.


def test_spooled_rows_read_like_a_list(tmp_path: Path) -> None:
    rows = [{"_ng_task_index": 0, "number": number, "text": "é\ud83d"} for number in (1, 10**30, -0.5, inf, True, None)]
    spooled = SpooledRows(rows, tmp_path)
    assert (spooled, len(spooled), [*spooled], bool(spooled)) == (rows, 6, rows, True)
    assert (spooled[-1], spooled[1:3], spooled[4:], spooled[9:]) == (rows[-1], rows[1:3], rows[4:], [])
    assert (spooled[::-2], spooled[1:][1:-1]) == (rows[::-2], rows[2:-1])
    with pytest.raises(IndexError):
        spooled[6]
    spooled.append({"reward": nan})
    assert isnan(spooled[6]["reward"])
    assert [row for row in spooled if row == rows[2]] == [rows[2]]
    assert (SpooledRows(), bool(SpooledRows())) == ([], False)


def test_spooled_rows_leave_nothing_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    spooled = SpooledRows([{"a": 1}], tmp_path)
    assert [*tmp_path.iterdir()] == []
    del spooled
    assert before is None or len(os.listdir("/proc/self/fd")) == before


# Inputs.

KEYS = st.tuples(st.integers(0, 3), st.integers(-1, 3))


def inputs_of(files: RunFiles) -> Any:
    index = RunIndex.of(files)
    index.ensure_whole("inputs")
    return index.inputs


@given(st.lists(st.tuples(KEYS, st.integers())), st.lists(KEYS))
def test_inputs_are_found_by_key_wherever_they_are_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[tuple[int, int], int]], asked: list[tuple[int, int]]
) -> None:
    files = RunFiles(tmp_path_factory.mktemp("inputs") / "run.jsonl")
    rows = [{"_ng_task_index": task, "_ng_rollout_index": rollout, "n": n} for (task, rollout), n in given]
    files.inputs.write_text("\ufeff\n" + "\n\n".join(map(json.dumps, rows)))
    expected = {key: row for (key, _), row in zip(given[::-1], rows[::-1], strict=True)}  # the first one counts
    inputs = inputs_of(files)
    assert (inputs, [*inputs], bool(inputs)) == (expected, sorted(expected), bool(expected))
    assert [inputs.get(key) for key in asked] == [expected.get(key) for key in asked]


def test_inputs_without_indices_are_tasks_of_their_own(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run.jsonl")
    files.inputs.write_text('{"n": 1}\n\n{"n": 2}\n')
    inputs = inputs_of(files)
    assert [(key, row["n"], row["_ng_task_index"]) for key, row in inputs.items()] == [((0, 0), 1, 0), ((2, 0), 2, 2)]


@pytest.mark.parametrize("line", ['{"_ng_task_index": 1e3}', '{"_ng_rollout_index": 9223372036854775808}', "[]", "{"])
def test_a_line_that_is_no_row_is_named(line: str, tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run.jsonl")
    files.inputs.write_text(f"{{}}\n{line}\n")
    with raises(BadTask):
        inputs_of(files)


def test_a_resumed_run_reads_what_is_left_in_the_order_of_its_tasks(tmp_path: Path) -> None:
    planned = plan(tmp_path, 3)
    planned.files.begin(planned.inputs())
    rows = [json.loads(line) for line in planned.files.inputs.read_text().splitlines()]
    done = [rows[7], rows[1], rows[7], {**rows[0], "_ng_task_index": 99}]
    planned.files.rollouts.write_text("".join(json.dumps({**row, "reward": 1.0}) + "\n" for row in done))
    failures = [(rows[2], True), (rows[3], False), (rows[2], True), (rows[7], True)]
    planned.files.failures.write_text(
        "".join(json.dumps({**row, "_ng_failure_terminal": ended}) + "\n" for row, ended in failures)
    )
    left = what_is_left(planned.files)
    assert [*left.rows] == [*left.rows] == [rows[index] for index in (0, 3, 4, 5, 6, 8, 9, 10, 11)]
    assert (left.unfinished, left.tasks, left.failed, left.done, left.episodes) == (9, 4, 1, 3, 13)
    assert len(planned.files.rollouts.read_text().splitlines()) == 3  # each once
    assert len(planned.files.failures.read_text().splitlines()) == 1
