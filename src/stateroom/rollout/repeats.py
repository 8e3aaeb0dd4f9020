"""Repeats: the metrics of each rollout index over all tasks, and how they vary from repeat to repeat.

Names and definitions are those of NeMo Gym, so that its tools read them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist, fmean, median, quantiles, stdev
from typing import Any

from stateroom.rollout.figures import Figures, Groups
from stateroom.rollout.lazy import LazyMap

CONFIDENCE = 0.95

EXACT = 1000
"""Degrees of freedom up to which quantiles of the t distribution are exact."""

QUARTILES = ("p25", "p75")


def repeats_of(figures: Figures) -> Groups:
    """The episodes of each repeat, by its rollout index."""
    return Groups(figures.rollouts, figures.in_order())


def repeat_metrics(figures: Figures, repeats: Sequence[Sequence[int]]) -> Sequence[dict[str, Any]]:
    """The metrics of each repeat over its tasks, computed as they are read; none of a single one."""
    return LazyMap(partial(_repeat, figures), repeats) if len(repeats) > 1 else []


def _repeat(figures: Figures, episodes: Sequence[int]) -> dict[str, Any]:
    counted = _one_per_task(figures, episodes)
    return {
        "_ng_rollout_index": figures.rollouts[episodes[0]],
        "sample_count": len(counted),
        "missing_count": len(figures.by_task) - len(counted),
        **_all_summaries(figures.columns(counted)),
    }


def _one_per_task(figures: Figures, episodes: Sequence[int]) -> list[int]:
    """The episodes of a repeat without those that another one of the same task follows."""
    return [*{figures.tasks[episode]: episode for episode in episodes}.values()]


def across_repeats(figures: Figures, repeats: Sequence[Sequence[int]]) -> dict[str, float]:
    """How the mean of each metric varies from repeat to repeat; none of a single one."""
    means: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for episodes in repeats if len(repeats) > 1 else ():
        for name, values in figures.columns(_one_per_task(figures, episodes)).items():
            means[name].append(fmean(values))
    found: dict[str, float] = {}
    for name in sorted(means):
        summary = _summary(means[name])
        summary["se"] = summary.pop("sem")
        found |= {
            f"{stat}_across_repeats/mean/{name}": value for stat, value in summary.items() if stat not in QUARTILES
        }
    return found


def _all_summaries(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {f"{stat}/{name}": value for name in sorted(columns) for stat, value in _summary(columns[name]).items()}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """The statistics of some values, and the confidence interval of their mean if they are several."""
    values = [*values]  # each number of an array is made anew when it is read
    several = len(values) > 1
    mean, deviation = fmean(values), stdev(values) if several else 0.0
    error = deviation / sqrt(len(values))
    first, _, third = quantiles(values, method="inclusive") if several else (values[0],) * 3
    found = {
        "mean": mean,
        "median": median(values),
        "std": deviation,
        "sem": error,
        "min": min(values),
        "max": max(values),
        "p25": first,
        "p75": third,
    }
    if several:
        margin = error * t_quantile(len(values) - 1)
        found |= {"ci_low_95": mean - margin, "ci_high_95": mean + margin}
    return found


@cache
def t_quantile(freedom: int) -> float:
    """The number that bounds the middle 95 % of Student's t distribution with some degrees of freedom."""
    if freedom > EXACT:  # the expansion by Cornish and Fisher is as good
        z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """The share of Student's t distribution between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cos(angle) if odd else 1.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
