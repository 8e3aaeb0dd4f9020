"""The index of a run: its rows, files that grow, are torn or replaced, and searches."""

import json
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import NotFound
from stateroom.gallery import CounterEnvironment
from stateroom.jsonl import line_of
from stateroom.model import ModelSource
from stateroom.rollout import (
    EpisodeFilter,
    RunFiles,
    RunIndex,
    Search,
    StoredRun,
    agent_metrics,
    generate_tasks,
    index as module,
    rescore_rollouts,
    run,
)
from stateroom.store import open_store
from tests.plans import make_run
from tests.rows import write_rows

NOTHING = EpisodeFilter()


def row(task: int, rollout: int = 0, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFiles:
    """The files of a run, whose index is kept however small they are, and is made in many batches."""
    monkeypatch.setattr(module, "MIN_BYTES_KEPT", 0)
    monkeypatch.setattr(module, "FIRST_BATCH_BYTES", 100)
    monkeypatch.setattr(module, "BATCH_BYTES", 300)
    monkeypatch.setattr(module, "EDGE_BYTES", 50)
    return RunFiles(tmp_path / "x.jsonl")


def tasks(index: RunIndex) -> list[int]:
    while index.advance():
        pass
    return [each["task"] for each in Search(index).page(NOTHING, limit=1000)[0]]


# Reading.


def test_a_row_is_found_by_its_line_whatever_the_batches(files: RunFiles) -> None:
    rows = [row(task, reward=task / 2, text="é" * task * 7) for task in range(40)]
    write_rows(files.rollouts, rows)
    with files.rollouts.open("ab") as file:
        file.write(b"\n   \n" + line_of(row(40, reward=1.0)))
    index = RunIndex.of(files)
    assert [index.row("rollouts", line) for line in range(1, 41)] == rows
    assert index.row("rollouts", 43) == row(40, reward=1.0)
    with pytest.raises(NotFound):
        index.row("rollouts", 41)
    assert index.progress == (files.rollouts.stat().st_size,) * 2
    assert index.warnings() == []


def test_a_torn_last_line_is_a_warning_until_it_is_whole(files: RunFiles) -> None:
    whole = line_of(row(1, reward=1.0))
    files.rollouts.write_bytes(line_of(row(0, reward=0.0)) + whole[:-9])
    index = RunIndex(files)
    assert tasks(index) == [0]
    [warning] = index.warnings()
    assert warning.startswith("x.jsonl: line 2 is incomplete")
    before = index.version
    with files.rollouts.open("ab") as file:
        file.write(whole[-9:])
    assert tasks(index) == [0, 1]
    assert (index.warnings(), index.version != before) == ([], True)


def test_a_last_line_that_lacks_only_its_end_is_a_row_once(files: RunFiles) -> None:
    files.rollouts.write_bytes(line_of(row(0)) + line_of(row(1)).strip())
    index = RunIndex(files)
    assert tasks(index) == [0, 1]
    with files.rollouts.open("ab") as file:
        file.write(b"\n" + line_of(row(2)))
    assert tasks(index) == [0, 1, 2]
    assert index.row("rollouts", 3) == row(2)


def test_lines_that_are_no_rows_are_left_out_and_told(files: RunFiles) -> None:
    files.rollouts.write_bytes(b'[1]\n{"a":\n{"_ng_task_index": "x"}\n\xff\n' + line_of(row(7, reward=1.0)))
    index = RunIndex(files)
    assert tasks(index) == [7]
    assert index.warnings() == ["x.jsonl: 4 invalid lines were skipped; see line 1"]


def test_odd_rows_are_rows(files: RunFiles) -> None:
    lines = [
        b'\xef\xbb\xbf{"reward": NaN, "_stateroom_session": "\\ud83d"}',
        b'{"reward": 1e400, "tool_calls": 1%s, "response": {"output": 3}}' % (b"0" * 400),
        b'{"reward": true, "response": {"output": [{"type": 5}]}, "reward_components": {"a": 1, "b": "c"}}',
        b'{"reward": "much", "_ng_failure_class": null, "_stateroom_times": 3}',
    ]
    files.rollouts.write_bytes(b"\n".join(lines))
    found, total = Search(RunIndex.of(files)).page(NOTHING)
    assert [(each["task"], each["reward"]) for each in found] == [(0, None), (1, None), (2, 1.0), (3, None)]
    assert (total, found[3]["failure"]) == (4, "None")


@pytest.mark.parametrize("how", ["replaced", "shortened", "in place", "edited"])
def test_a_file_that_was_changed_is_indexed_anew(files: RunFiles, how: str) -> None:
    write_rows(files.rollouts, [row(task, reward=0.5) for task in range(100, 130)])
    index = RunIndex(files)
    assert tasks(index) == [*range(100, 130)]
    text = files.rollouts.read_bytes()
    if how == "edited":  # of the same size, at another time
        files.rollouts.write_bytes(text.replace(b"115", b"999"))
        os.utime(files.rollouts, ns=(1, 1))
        assert tasks(index) == [*range(100, 115), 999, *range(116, 130)]
        return
    new = [row(task, reward=0.25) for task in range(3 if how == "shortened" else 50)]
    if how != "in place":
        files.rollouts.unlink()
        files.rollouts.with_suffix(".keep").write_bytes(text)  # so that its number is not given to another
    else:
        files.rollouts.write_bytes(b"")
    write_rows(files.rollouts, new)
    assert tasks(index) == [*range(len(new))]
    files.rollouts.unlink()
    assert tasks(index) == []


def test_what_was_indexed_before_is_not_read_again(files: RunFiles) -> None:
    write_rows(files.rollouts, [row(task) for task in range(20)])
    RunIndex.of(files).close()
    before = files.rollouts.stat().st_size
    write_rows(files.rollouts, [row(20)])
    index = RunIndex(files)
    assert index.progress == (before, files.rollouts.stat().st_size)
    assert tasks(index) == [*range(21)]


def forged(script: str) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)

    return forge


def overwritten(place: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("rb+") as file:
            file.seek(int(place * path.stat().st_size))
            file.write(b"\xff" * 9000)

    return damage


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda path: path.write_bytes(b"no database, but long enough to be one " * 100),
        forged("PRAGMA user_version = 99"),
        *map(overwritten, (0.1, 0.5, 0.9)),
        forged("UPDATE rows SET reward = 1"),
        forged("UPDATE rows SET numbers = x'00'"),
        forged("UPDATE rows SET offset = 1 << 60"),
        forged("UPDATE files SET lines = -1"),
        forged("PRAGMA ignore_check_constraints = ON; UPDATE rows SET task = 'x' WHERE line = 7"),
        forged("CREATE TRIGGER reach AFTER INSERT ON rows BEGIN DELETE FROM rows; END"),
        forged("DROP TABLE rows; CREATE VIEW rows AS SELECT 1"),
        forged("DELETE FROM about"),
    ],
)
def test_an_index_that_does_not_fit_its_file_is_made_anew(files: RunFiles, spoil: Callable[[Path], None]) -> None:
    write_rows(files.rollouts, [row(task, reward=0.5, **{f"n{n}": n for n in range(50)}) for task in range(200)])
    RunIndex.of(files).close()
    spoil(files.index)
    index = RunIndex.of(files)
    assert [each["reward"] for each in Search(index).page(NOTHING, limit=1000)[0]] == [0.5] * 200
    assert tasks(index) == [*range(200)]
    assert agent_metrics(Search(index).measured(by_task=False))["mean/reward"] == 0.5


@pytest.mark.parametrize("how", ["folder", "link", "pipe"])
def test_where_no_index_can_be_written_it_is_elsewhere(files: RunFiles, tmp_path: Path, how: str) -> None:
    write_rows(files.rollouts, [row(task) for task in range(20)])
    other = tmp_path / "other"
    other.touch()
    match how:
        case "folder":
            files.index.mkdir()
        case "pipe":
            os.mkfifo(files.index)
        case _:
            files.index.symlink_to(other)
    assert tasks(RunIndex(files)) == [*range(20)]
    assert other.read_bytes() == b""


def test_a_small_file_gets_no_index_beside_it(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "x.jsonl")
    write_rows(files.rollouts, [row(0)])
    RunIndex.of(files)
    assert [*tmp_path.iterdir()] == [files.rollouts]


def _index_all(path: Path, start: Any) -> None:
    module.MIN_BYTES_KEPT, module.FIRST_BATCH_BYTES, module.BATCH_BYTES = 0, 100, 300
    start.wait()
    RunIndex.of(RunFiles(path))


def test_two_processes_index_at_once(files: RunFiles) -> None:
    write_rows(files.rollouts, [row(task // 2, task % 2) for task in range(400)])
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=_index_all, args=(files.rollouts, start)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    index = RunIndex(files)
    assert not index.advance()
    assert tasks(index) == [task // 2 for task in range(400)]


# Searching.

CLASSES = ["model", "store"]
EPISODES = st.lists(
    st.fixed_dictionaries(
        {"task": st.integers(0, 4), "rollout": st.integers(0, 3)},
        optional={
            "reward": st.sampled_from([0.0, 0.25, 1.0, -3.5]),
            "failure": st.sampled_from(CLASSES),
            "session": st.sampled_from(["a", "b", "c"]),
            "tool_calls": st.integers(0, 3),
        },
    ),
    max_size=25,
)
FILTERS = st.builds(
    EpisodeFilter,
    task=st.none() | st.integers(0, 4),
    low=st.none() | st.sampled_from([0.0, 0.1, 1.0]),
    high=st.none() | st.sampled_from([0.25, 0.5]),
    below=st.none() | st.sampled_from([0.25, 1.0]),
    failure=st.none() | st.sampled_from(CLASSES),
    failed=st.none() | st.booleans(),
    tool=st.none() | st.just("boil"),
    session=st.none() | st.booleans(),
)


def fits(wanted: EpisodeFilter, row: dict[str, Any], broken: list[dict[str, Any]]) -> bool:
    """Whether an episode is wanted, in plain Python."""
    reward, session = row.get("reward"), row.get("session")
    if row.get("failure"):
        reward = None
    return all(
        (
            wanted.task in (None, row["task"]),
            wanted.low is None or (reward is not None and reward >= wanted.low),
            wanted.high is None or (reward is not None and reward <= wanted.high),
            wanted.below is None or (reward is not None and reward < wanted.below),
            wanted.failure in (None, row.get("failure")),
            wanted.failed in (None, "failure" in row),
            wanted.session in (None, session is not None),
            wanted.tool is None
            or any(
                session == each["session"]
                if "session" in each
                else (row["task"], row["rollout"]) == (each["task"], each["rollout"])
                for each in broken
            ),
        )
    )


def stored(given: dict[str, Any]) -> dict[str, Any]:
    names = {
        "task": "_ng_task_index",
        "rollout": "_ng_rollout_index",
        "session": "_stateroom_session",
        "failure": "_ng_failure_class",
    }
    return {names.get(name, name): value for name, value in given.items()}


@given(
    EPISODES,
    EPISODES,
    EPISODES,
    FILTERS,
    st.sampled_from(["line", "reward", "task", "tool_calls", "failure", "session"]),
    st.sampled_from(["ascending", "descending"]),
    st.integers(0, 5),
    st.integers(1, 10),
)
def test_filters_and_sorts_are_those_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    done: list[dict[str, Any]],
    failed: list[dict[str, Any]],
    broken: list[dict[str, Any]],
    wanted: EpisodeFilter,
    sort: str,
    order: Any,
    offset: int,
    limit: int,
) -> None:
    files = RunFiles(tmp_path_factory.mktemp("search") / "x.jsonl")
    write_rows(files.rollouts, map(stored, done))
    write_rows(files.failures, map(stored, failed))
    write_rows(files.tool_failures, ({**stored(each), "tool": "boil"} for each in broken))
    seen: set[Any] = set()
    expected = []
    for file, rows in (("rollouts", done), ("failures", failed)):
        for line, each in enumerate(rows, 1):
            key = each["task"], each["rollout"]
            if key not in seen and fits(wanted, each, broken):
                reward = None if "failure" in each else each.get("reward")
                expected.append({**each, "reward": reward, "file": file, "line": line})
            seen.add(key)
    known = [each for each in expected if each.get(sort) is not None]
    place = {"rollouts": 0, "failures": 1}
    column = (lambda each: (place[each["file"]], each["line"])) if sort == "line" else itemgetter(sort)
    known.sort(key=column, reverse=order == "descending")  # ties stay in the order of the files
    expected = known + [each for each in expected if each.get(sort) is None]
    found, total = Search(RunIndex.of(files)).page(wanted, sort, order, offset, limit)
    assert total == len(expected)
    assert [(each["file"], each["line"]) for each in found] == [
        (each["file"], each["line"]) for each in expected[offset : offset + limit]
    ]


def test_the_histogram_counts_each_reward_once(files: RunFiles) -> None:
    rewards = [place / 7 for place in range(50)]
    write_rows(files.rollouts, [row(task, reward=reward) for task, reward in enumerate(rewards)])
    search = Search(RunIndex.of(files))
    bars = search.histogram()
    assert sum(bar["count"] for bar in bars) == 50
    for bar in bars[:-1]:
        assert search.page(EpisodeFilter(low=bar["low"], below=bar["high"]))[1] == bar["count"]
    assert search.page(EpisodeFilter(low=bars[-1]["low"], high=bars[-1]["high"]))[1] == bars[-1]["count"]
    files.rollouts.write_bytes(line_of(row(0, reward=0.5)) * 3)
    assert Search(RunIndex.of(files)).histogram() == [{"low": 0.5, "high": 0.5, "count": 1}]  # an episode counts once


def test_the_matrix_has_tasks_that_are_yet_to_be_run(files: RunFiles) -> None:
    write_rows(files.inputs, [row(task, rollout) for task in range(4) for rollout in range(2)])
    write_rows(files.rollouts, [row(2, 1, reward=1.0), row(0, 0, reward=0.0), row(2, 0, reward=0.5)])
    write_rows(files.failures, [row(0, 1, _ng_failure_class="model"), row(2, 0, _ng_failure_class="model")])
    found, total = Search(RunIndex.of(files)).matrix(0, 3)
    cells = [(task, [(each["rollout"], each["reward"], each["failure"]) for each in row]) for task, row in found]
    assert cells == [(0, [(0, 0.0, None), (1, None, "model")]), (1, []), (2, [(0, 0.5, None), (1, 1.0, None)])]
    assert (total, Search(RunIndex.of(files)).matrix(3, 3)[0]) == (4, [(3, [])])


# Metrics.


def assert_equal(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


async def test_metrics_are_those_of_the_file_also_of_a_rescored_run(files: RunFiles) -> None:
    policy = ModelSource("noisy", CounterEnvironment.policies["noisy"])
    url = f"sqlite:///{files.sessions}"
    plan = make_run(CounterEnvironment(), policy, generate_tasks(CounterEnvironment, 7, 0), files, store=url, repeats=3)
    await run(plan)
    [told] = json.loads(files.metrics.read_bytes())
    assert_equal(StoredRun(files).metrics(Search(RunIndex.of(files))), told["agent_metrics"])
    again = RunFiles(files.rollouts.with_name("again.jsonl"))
    async with open_store(url) as store:
        await rescore_rollouts(CounterEnvironment(), files.rollouts, again, store)
    [told] = json.loads(again.metrics.read_bytes())
    assert_equal(StoredRun(again).metrics(Search(RunIndex.of(again))), told["agent_metrics"])


async def test_a_run_that_starts_over_has_no_index_of_the_one_before(files: RunFiles) -> None:
    write_rows(files.rollouts, [row(0)])
    write_rows(files.inputs, [row(0)])
    RunIndex.of(files).close()
    assert files.index.exists()
    files.prepare(force=True)
    assert not files.index.exists()
