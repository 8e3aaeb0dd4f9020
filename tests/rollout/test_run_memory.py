"""The memory of a run: it does not grow with the episodes, but for a few bytes each."""

import asyncio
import gc
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom import Environment, Episode, Verdict
from stateroom.errors import BadTask
from stateroom.model import Answer, Model, ModelSource, Request, message
from stateroom.rollout import ResumePlan, RunFiles, RunIndex, RunPlan, index, run
from tests.messages import raises
from tests.plans import make_run
from tests.rows import rows, write_rows

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


def plan(folder: Path, repeats: int, tasks: int = 4, **more: Any) -> RunPlan:
    return make_run(
        environment=Guess(),
        model=ModelSource("guesser", lambda seed: Guesser()),
        tasks=[{"responses_create_params": {"input": "Guess."}, "hint": "h" * 100} for _ in range(tasks)],
        files=RunFiles(folder / f"{repeats}-{tasks}.jsonl"),
        repeats=repeats,
        **more,
    )


def peak_of(planned: RunPlan) -> int:
    """The most bytes that a run has in memory at once."""
    gc.collect()
    tracemalloc.start()
    try:
        report = asyncio.run(run(planned))
        assert len(report.rows) == report.episodes
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index reads few rows at a time: what a batch takes does not grow with the run."""
    for name, size in (("FIRST_BATCH_BYTES", 1 << 14), ("BATCH_BYTES", 1 << 14), ("ROWS_PER_FETCH", 100)):
        monkeypatch.setattr(index, name, size)


@pytest.mark.more("time")
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["few tasks", "many tasks", "resumed"])
def test_an_episode_takes_few_bytes_of_a_runs_memory(kind: str, tmp_path: Path) -> None:
    peaks = []
    for episodes in (4, 400, 2400):  # the first ones import and cache what a run uses
        repeats, tasks = (1, episodes) if kind == "many tasks" else (episodes // 4, 4)
        planned = plan(tmp_path, repeats, tasks, resume=kind == "resumed")
        if kind == "resumed":
            asyncio.run(run(planned))
            lines = planned.files.rollouts.read_bytes().splitlines(keepends=True)
            planned.files.rollouts.write_bytes(b"".join(lines[:-2]))
        peaks.append(peak_of(planned))
    assert (peaks[2] - peaks[1]) / 2000 < MOST


async def test_the_rows_of_a_report_read_like_a_list_and_leave_no_file_behind(tmp_path: Path) -> None:
    planned = plan(tmp_path, 3, 2)
    found = (await run(planned)).rows
    expected = [*found]
    assert (found, len(found), bool(found)) == (expected, 6, True)
    assert (found[-1], found[1:3], found[4:], found[9:]) == (expected[-1], expected[1:3], expected[4:], [])
    assert (found[::-2], found[1:][1:-1]) == (expected[::-2], expected[2:-1])
    with pytest.raises(IndexError):
        found[6]
    assert all(name.startswith("3-2") for name in os.listdir(tmp_path))


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
    lines = [{"_ng_task_index": task, "_ng_rollout_index": rollout, "n": n} for (task, rollout), n in given]
    files.inputs.write_text("\ufeff\n" + "\n\n".join(map(json.dumps, lines)))
    expected = {key: row for (key, _), row in zip(given[::-1], lines[::-1], strict=True)}  # the first one counts
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


async def test_a_resumed_run_runs_what_is_left_and_keeps_each_row_once(tmp_path: Path) -> None:
    planned = plan(tmp_path, 3)
    await run(planned)
    files, inputs, done = planned.files, rows(planned.files.inputs), rows(planned.files.rollouts)
    files.rollouts.unlink()
    write_rows(files.rollouts, [done[7], done[1], done[7], {**done[0], "_ng_task_index": 99}])
    ended = [(2, True), (3, False), (2, True), (7, True)]
    write_rows(files.failures, [{**inputs[row], "_ng_failure_terminal": terminal} for row, terminal in ended])
    left: list[ResumePlan] = []
    await run(plan(tmp_path, 3, resume=True), on_start=left.append)
    assert [(each.episodes, each.over, each.failed) for each in left] == [(13, 4, 1)]
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(files.rollouts)]
    every = [(task, rollout) for task in range(4) for rollout in range(3)]
    assert keys == [*every[:2], *every[3:], (99, 0)]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(files.failures)] == [(0, 2)]
