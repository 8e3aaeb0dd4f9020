"""Two runs compared: the difference of their means, and how sure it is."""

from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, strategies as st

from stateroom.rollout import RunComparison, TaskComparison


def compared(differences: list[float]) -> RunComparison:
    return RunComparison([TaskComparison(task, 0.0, value, (1, 1)) for task, value in enumerate(differences)])


def test_the_interval_is_that_of_a_mean_over_tasks_and_always_the_same() -> None:
    rng = Random(1)
    differences = [rng.gauss(0.2, 0.5) for _ in range(200)]
    low, high = compared(differences).interval() or (0.0, 0.0)
    error = stdev(differences) / len(differences) ** 0.5
    assert (low, high) == compared(differences).interval()
    assert low == pytest.approx(fmean(differences) - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(fmean(differences) + 1.96 * error, abs=0.2 * error)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=12))
def test_each_task_is_won_lost_or_tied(differences: list[float]) -> None:
    found = compared(differences)
    assert found.count("won") == sum(value > 0 for value in differences)
    assert found.count("lost") == sum(value < 0 for value in differences)
    assert found.count("tied") == sum(value == 0 for value in differences)
    assert found.difference == pytest.approx(fmean(differences))


def test_one_task_has_no_interval() -> None:
    assert compared([0.5]).interval() is None
    assert compared([0.5, 0.5]).interval() == (0.5, 0.5)
