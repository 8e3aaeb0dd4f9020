"""Repeats: the metrics of each rollout index over all tasks, and how they vary from repeat to repeat.

Names and definitions are those of NeMo Gym, so that its tools read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist, fmean, median, quantiles, stdev
from typing import Any

CONFIDENCE = 0.95

EXACT = 1000
"""Degrees of freedom up to which quantiles of the t distribution are exact."""

Figures = Mapping[str, float]
"""The metrics of an episode."""


def repeat_metrics(episodes: Mapping[int, Sequence[tuple[int, Figures]]]) -> list[dict[str, Any]]:
    """The metrics of each repeat over its tasks, from each task's rollout indices and figures; none of a single one."""
    repeats: dict[int, dict[int, Figures]] = defaultdict(dict)
    for task, rollouts in episodes.items():
        for rollout, figures in rollouts:
            repeats[rollout][task] = figures
    if len(repeats) < 2:
        return []
    return [
        {
            "_ng_rollout_index": rollout,
            "sample_count": len(tasks),
            "missing_count": len(episodes) - len(tasks),
            **_all_summaries([*tasks.values()]),
        }
        for rollout, tasks in sorted(repeats.items())
    ]


def across_repeats(repeats: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How the mean of each metric varies from repeat to repeat."""
    found: dict[str, float] = {}
    for name in sorted({name for each in repeats for name in each if name.startswith("mean/")}):
        values = [each[name] for each in repeats if name in each]
        figures = _summary(values)
        figures["se"] = figures.pop("sem")
        found |= {f"{stat}_across_repeats/{name}": value for stat, value in figures.items() if stat not in QUARTILES}
    return found


QUARTILES = ("p25", "p75")


def _all_summaries(tasks: Sequence[Figures]) -> dict[str, float]:
    names = sorted({name for figures in tasks for name in figures})
    values = {name: [figures[name] for figures in tasks if name in figures] for name in names}
    return {f"{stat}/{name}": value for name in names for stat, value in _summary(values[name]).items()}


def _summary(values: Sequence[float]) -> dict[str, float]:
    """The statistics of some values, and the confidence interval of their mean if they are several."""
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
