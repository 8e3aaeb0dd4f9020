"""Metrics: pass@k without bias, and what is averaged."""

from itertools import combinations
from statistics import fmean, median, stdev
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import BadData
from stateroom.rollout import Price, aggregate, pass_at_k, standard_error


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


def test_every_metric_is_summarised_over_all_and_by_task() -> None:
    values = {0: [1.0, 4.0, 2.5], 1: [7.0]}
    rows = [row(task, 1.0, score=value) for task in (1, 0) for value in values[task]]
    found = aggregate(rows)
    every = [*values[0], *values[1]]
    assert {key: value for key, value in found["agent_metrics"].items() if key.endswith("/score")} == {
        "mean/score": fmean(every),
        "min/score": 1.0,
        "max/score": 7.0,
        "median/score": median(every),
        "std/score": stdev(every),
        "stderr/score": standard_error(values.values()),
    }
    first, second = found["group_level_metrics"]
    assert (first["_ng_task_index"], first["mean/score"], first["median/score"]) == (0, 2.5, 2.5)
    assert (second["_ng_task_index"], second["mean/score"], second["std/score"]) == (1, 7.0, 0.0)


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
    with pytest.raises(BadData, match=r"write in=0\.15,out=0\.6"):
        Price.parse(text)


def test_only_numbers_of_the_episode_are_metrics() -> None:
    found = aggregate([row(0, 1.0, words="x", flag=True, nothing=None, values=[1], _private=3, count=2)])
    assert {key.partition("/")[2] for key in found["agent_metrics"] if key.startswith("mean/")} == {"reward", "count"}


def test_the_parts_of_a_reward_are_metrics() -> None:
    rows = [row(0, 1.0, reward_components={"style": part, "note": "x"}) for part in (0.25, 0.75)]
    found = aggregate([*rows, row(1, 0.0, reward_components="none")])
    assert found["agent_metrics"]["mean/reward_components/style"] == 0.5
    assert {key.partition("/")[2] for key in found["agent_metrics"] if key.startswith("mean/")} == {
        "reward",
        "reward_components/style",
    }


def test_a_metric_of_some_episodes_is_averaged_over_those() -> None:
    found = aggregate([row(0, 1.0, extra=3), row(0, 0.0)])
    assert found["agent_metrics"]["mean/extra"] == 3


def test_no_episodes_no_metrics() -> None:
    assert aggregate([]) == {"agent_metrics": {}, "key_metrics": {}, "group_level_metrics": []}
