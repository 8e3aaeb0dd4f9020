"""Metrics: pass@k without bias, and what is averaged."""

import json
from collections import defaultdict
from itertools import combinations
from math import inf, nan
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import BadData
from stateroom.rollout import Price, RunFiles, aggregate, pass_at_k, standard_error
from tests.messages import raises


def row(task: int, reward: float, **more: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": reward, **more}


@given(st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_solved_one(data: st.DataObject) -> None:
    solved = data.draw(st.lists(st.booleans(), min_size=1, max_size=9))
    k = data.draw(st.integers(1, len(solved)))
    draws = list(combinations(solved, k))
    assert pass_at_k(len(solved), sum(solved), k) == pytest.approx(fmean(any(draw) for draw in draws))


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 0.999, 1.0, 2.0]), min_size=1, max_size=7), min_size=1, max_size=5))
def test_aggregate_passes_are_means_over_the_tasks_with_enough_episodes(tasks: list[list[float]]) -> None:
    found = aggregate([row(task, reward) for task, rewards in enumerate(tasks) for reward in rewards])
    most = max(map(len, tasks))
    passes = {key: value for key, value in found["agent_metrics"].items() if key.startswith("pass@")}
    assert {int(key[5:]) for key in passes} == {k for k in (1, 2, 4, most) if k <= most}
    for key, value in passes.items():
        k = int(key[5:])
        by_hand = [
            fmean(any(reward >= 1 for reward in draw) for draw in combinations(rewards, k))
            for rewards in tasks
            if len(rewards) >= k
        ]
        assert value == pytest.approx(fmean(by_hand))
    named = {name: value for name, value in found["key_metrics"].items() if not name.startswith("stderr/")}
    assert named == {"mean/reward": found["agent_metrics"]["mean/reward"], **passes}


def test_pass_at_k_of_many() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert (pass_at_k(4, 0, 4), pass_at_k(4, 4, 1), pass_at_k(4, 2, 3)) == (0, 1, 1)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_the_standard_error_of_one_episode_per_task_is_that_of_a_mean(values: list[float]) -> None:
    assert standard_error([value] for value in values) == pytest.approx(stdev(values) / len(values) ** 0.5)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=9))
def test_the_standard_error_is_clustered_by_task(tasks: list[list[float]]) -> None:
    means = [fmean(task) for task in tasks]
    assert standard_error(tasks) == pytest.approx(stdev(means) / len(means) ** 0.5, abs=1e-12)
    rows = [row(task, reward) for task, rewards in enumerate(tasks) for reward in rewards]
    assert aggregate(rows)["key_metrics"]["stderr/reward"] == standard_error(tasks)
    assert aggregate(rows[::-1])["key_metrics"] == aggregate(rows)["key_metrics"]  # episodes end in any order


def test_repeating_a_task_does_not_make_the_standard_error_smaller() -> None:
    assert standard_error([[0.0] * 100, [1.0] * 100]) == standard_error([[0.0], [1.0]])
    assert standard_error([[0.0, 1.0, 1.0, 0.0]]) == pytest.approx(stdev([0, 1, 1, 0]) / 2)  # a task by itself
    assert standard_error([[0.5]]) is standard_error([]) is None


def test_numbers_whose_squares_are_too_large_have_a_standard_error() -> None:
    assert standard_error([[1e200], [-1e200]]) == pytest.approx(1e200)


def test_from_which_reward_an_episode_is_solved_is_a_choice() -> None:
    rows = [row(task, reward) for task, reward in enumerate((0.7, 0.8, 1.0))]
    assert aggregate(rows)["key_metrics"]["pass@1"] == pytest.approx(1 / 3)
    assert aggregate(rows, 0.8)["key_metrics"]["pass@1"] == pytest.approx(2 / 3)


def test_a_price_is_per_million_tokens() -> None:
    usage = {"input_tokens": 3_000_000, "output_tokens": 500_000, "input_tokens_details": {"cached_tokens": 1_000_000}}
    assert Price.parse("in=0.15, out=0.6").cost({"usage": usage}) == {"cost": pytest.approx(0.75)}
    assert Price.parse("in=0.15,out=0.6,cached=0.05").cost({"usage": usage}) == {"cost": pytest.approx(0.65)}
    assert Price.parse("out=1").cost({"output": []}) == {}


@pytest.mark.parametrize("text", ["", "0.15", "in=", "in=cheap", "in=-1", "in=nan", "input=1", "in=0.1;out=2"])
def test_what_is_not_a_price_is_refused(text: str) -> None:
    with raises(BadData):
        Price.parse(text)


def measured(found: Any) -> set[str]:
    return {key.partition("/")[2] for key in found["agent_metrics"] if key.startswith("mean/")}


def test_only_numbers_of_the_episode_are_metrics() -> None:
    given = row(0, 1.0, words="x", flag=True, nothing=None, values=[1], _private=3, count=2, expected_count=4)
    parts = {"style": 0.25, "note": "x"}
    others = {**given, "flag": False, "reward_components": parts}, row(1, 0.0, reward_components="none")
    found = aggregate([given, *others], given={"expected_count"})
    assert measured(found) == {"reward", "count", "flag", "reward_components/style"}
    assert found["key_metrics"].items() >= {"mean/count": 2.0, "mean/flag": 0.5}.items()


def test_the_tokens_of_a_response_are_metrics() -> None:
    usage = {"input_tokens": 60, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 30, "total_tokens": 90}
    for response in ({"usage": None}, {}, None):
        assert measured(aggregate([row(0, 1.0, response=response)])) == {"reward"}
    found = aggregate([row(0, 1.0, response={"usage": usage})])
    assert measured(found) == {"reward", "input_tokens", "output_tokens", "total_tokens"}
    assert found["agent_metrics"]["mean/total_tokens"] == 90


REPEATS = [(0, 0, 1.0), (0, 1, 0.0), (0, 2, 1.0), (1, 0, 0.5), (1, 1, 1.0), (2, 0, 0.75), (2, 1, 0.5), (2, 2, 0.0)]
"""Tasks, rollouts and rewards; of the second task an episode is missing."""

ACROSS = {
    "num_repeats": 3,
    "mean_across_repeats/mean/reward": 0.5833333333333334,
    "median_across_repeats/mean/reward": 0.5,
    "std_across_repeats/mean/reward": 0.14433756729740646,
    "min_across_repeats/mean/reward": 0.5,
    "max_across_repeats/mean/reward": 0.75,
    "se_across_repeats/mean/reward": 0.08333333333333334,
    "ci_low_95_across_repeats/mean/reward": 0.22477893918754482,
    "ci_high_95_across_repeats/mean/reward": 0.941887727479122,
}
"""What NeMo Gym 0.7.0 makes of these, over all repeats; and of the last one by itself:"""

LAST = {
    "_ng_rollout_index": 2,
    "sample_count": 2,
    "missing_count": 1,
    "mean/reward": 0.5,
    "median/reward": 0.5,
    "std/reward": 0.7071067811865476,
    "sem/reward": 0.5,
    "min/reward": 0.0,
    "max/reward": 1.0,
    "p25/reward": 0.25,
    "p75/reward": 0.75,
    "ci_low_95/reward": -5.853102368087347,
    "ci_high_95/reward": 6.853102368087347,
}


def test_repeats_are_measured_as_nemo_gym_does() -> None:
    found = aggregate([{**row(task, reward), "_ng_rollout_index": rollout} for task, rollout, reward in REPEATS])
    repeated = {name: value for name, value in found["agent_metrics"].items() if "repeats" in name}
    assert repeated == pytest.approx(ACROSS)
    assert len(found["repeat_level_metrics"]) == 3
    assert found["repeat_level_metrics"][2] == pytest.approx(LAST)
    second = found["group_level_metrics"][1]
    assert (second["num_rollouts"], second["expected_num_rollouts"]) == (2, 2)
    assert second["rollout_infos"] == [
        {"rollout_id": f"1:{rollout}", "_ng_task_index": 1, "_ng_rollout_index": rollout, "reward": reward}
        for rollout, reward in ((0, 0.5), (1, 1.0))
    ]


@pytest.mark.parametrize(
    ("freedom", "bound"),
    [(1, 12.706204736174694), (2, 4.302652729749462), (7, 2.364624251592784), (30, 2.0422724563), (1001, 1.9623367053)],
)
def test_confidence_intervals_are_those_of_students_t_distribution(freedom: int, bound: float) -> None:
    rows = [{**row(0, float(rollout % 2)), "_ng_rollout_index": rollout} for rollout in range(freedom + 1)]
    found: Any = aggregate(rows)["agent_metrics"]
    width = found["ci_high_95_across_repeats/mean/reward"] - found["mean_across_repeats/mean/reward"]
    assert width / found["se_across_repeats/mean/reward"] == pytest.approx(bound, rel=1e-8)


FLOATS = st.floats(-1e6, 1e6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"_ng_task_index": st.integers(-1, 4)},
        optional={
            "_ng_rollout_index": st.integers(0, 3),
            "reward": st.sampled_from([0.0, 0.5, 1.0]),
            "score": FLOATS,
            "count": st.integers(0, 10**20),
            "flag": st.booleans(),
            "words": st.text(),
            "reward_components": st.dictionaries(st.sampled_from("ab"), FLOATS),
        },
    ),
    max_size=30,
)


def figures_of(row: dict[str, Any]) -> dict[str, float]:
    parts = {f"reward_components/{name}": value for name, value in row.get("reward_components", {}).items()}
    named = {name: row[name] for name in row if not name.startswith("_") and name not in ("words", "reward_components")}
    return {name: float(value) for name, value in {**named, **parts}.items()}


def summary(rows: list[dict[str, Any]], **stats: Any) -> dict[str, float]:
    """Statistics of each metric over those rows that have it."""
    columns = defaultdict(list)
    for each in rows:
        for name, value in figures_of(each).items():
            columns[name].append(value)
    return {f"{stat}/{name}": function(columns[name]) for name in columns for stat, function in stats.items()}


SUMMARY = {"mean": fmean, "max": max, "min": min, "median": median, "std": lambda v: stdev(v) if len(v) > 1 else 0.0}


@given(ROWS)
def test_metrics_are_those_that_are_computed_by_hand(rows: list[dict[str, Any]]) -> None:
    tasks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    repeats: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for each in rows:
        tasks[each["_ng_task_index"]].append(each)
        repeats[each.get("_ng_rollout_index", 0)][each["_ng_task_index"]] = each  # the last one counts
    found = aggregate(rows)

    overall = summary(rows, **SUMMARY)
    assert found["agent_metrics"].items() >= overall.items()
    for name in [name.removeprefix("mean/") for name in overall if name.startswith("mean/")]:
        clusters = [[f[name] for each in tasks[task] if name in (f := figures_of(each))] for task in sorted(tasks)]
        assert found["agent_metrics"].get(f"stderr/{name}") == standard_error(clusters)
    assert found["agent_metrics"].get("num_repeats", 0) == len(repeats)

    assert [group["_ng_task_index"] for group in found["group_level_metrics"]] == sorted(tasks)
    for group in found["group_level_metrics"]:
        task = group["_ng_task_index"]
        assert group.items() >= summary(tasks[task], **SUMMARY).items()
        assert group["num_rollouts"] == len(tasks[task])
        assert group["rollout_infos"] == [
            {"rollout_id": f"{task}:{rollout}", "_ng_task_index": task, "_ng_rollout_index": rollout, **figures}
            for rollout, figures in sorted(
                ((each.get("_ng_rollout_index", 0), figures_of(each)) for each in tasks[task]), key=lambda pair: pair[0]
            )
        ]

    several = sorted(repeats) if len(repeats) > 1 else []
    assert [repeat["_ng_rollout_index"] for repeat in found["repeat_level_metrics"]] == several
    for repeat in found["repeat_level_metrics"]:
        counted: Any = repeats[repeat["_ng_rollout_index"]]  # type: ignore[index]
        assert repeat.items() >= summary([*counted.values()], **SUMMARY).items()
        assert (repeat["sample_count"], repeat["missing_count"]) == (len(counted), len(tasks) - len(counted))
    means = defaultdict(list)
    for index in several:
        for name, value in summary([*repeats[index].values()], mean=fmean).items():
            means[name].append(value)
    across = {f"mean_across_repeats/{name}": fmean(values) for name, values in means.items()}
    assert {name: value for name, value in found["agent_metrics"].items() if name[:12] == "mean_across_"} == across


def test_the_metrics_file_has_odd_names_and_numbers(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "out.jsonl")
    files.write_metrics(None, {"agent_metrics": {"half \ud83d": inf}, "groups": [{"x": nan}, {"x": nan}]})
    text = files.metrics.read_text()
    assert json.loads(text)[0]["agent_metrics"] == {"half \ud83d": inf}
    assert text.count('"x": NaN') == 2


def test_metrics_that_cannot_be_written_leave_the_old_file(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "out.jsonl")
    files.write_metrics(None, {})
    before = files.metrics.read_bytes()
    with pytest.raises(TypeError):
        files.write_metrics(None, {"groups": [{"x": 1}, object()]})
    assert (files.metrics.read_bytes(), [*tmp_path.iterdir()]) == (before, [files.metrics])
