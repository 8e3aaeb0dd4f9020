"""Metrics: pass@k without bias, and what is averaged."""

from itertools import combinations
from statistics import fmean, median, stdev
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.rollout import aggregate, pass_at_k


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
    assert found["key_metrics"] == {"mean/reward": found["agent_metrics"]["mean/reward"], **passes}


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
    }
    first, second = found["group_level_metrics"]
    assert (first["_ng_task_index"], first["mean/score"], first["median/score"]) == (0, 2.5, 2.5)
    assert (second["_ng_task_index"], second["mean/score"], second["std/score"]) == (1, 7.0, 0.0)


def test_only_numbers_of_the_episode_are_metrics() -> None:
    found = aggregate([row(0, 1.0, words="x", flag=True, nothing=None, values=[1], _private=3, count=2)])
    assert {key.partition("/")[2] for key in found["agent_metrics"] if "/" in key} == {"reward", "count"}


def test_the_parts_of_a_reward_are_metrics() -> None:
    rows = [row(0, 1.0, reward_components={"style": part, "note": "x"}) for part in (0.25, 0.75)]
    found = aggregate([*rows, row(1, 0.0, reward_components="none")])
    assert found["agent_metrics"]["mean/reward_components/style"] == 0.5
    assert {key.partition("/")[2] for key in found["agent_metrics"] if "/" in key} == {
        "reward",
        "reward_components/style",
    }


def test_a_metric_of_some_episodes_is_averaged_over_those() -> None:
    found = aggregate([row(0, 1.0, extra=3), row(0, 0.0)])
    assert found["agent_metrics"]["mean/extra"] == 3


def test_no_episodes_no_metrics() -> None:
    assert aggregate([]) == {"agent_metrics": {}, "key_metrics": {}, "group_level_metrics": []}
