"""Metrics over episodes: what the rewards come to, over all and task by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb, prod
from statistics import fmean, median, stdev
from typing import Any

Row = Mapping[str, Any]

MOST_EXACT = 1000
"""Episodes of one task up to which pass@k is computed with whole numbers."""

SOLVED = 1.0
"""An episode with at least this reward counts as solved."""


def pass_at_k(n: int, solved: int, k: int) -> float:
    """The chance that at least one of `k` episodes is solved, estimated without bias from `n` of which some are."""
    if n > MOST_EXACT:  # of as many the exact quotient would take seconds
        return 1.0 - prod((n - solved - index) / (n - index) for index in range(min(k, n - solved + 1)))
    return 1.0 - comb(n - solved, k) / comb(n, k)


def summarise(values: Sequence[float], name: str) -> dict[str, float]:
    """Mean, extremes, median and sample standard deviation of one metric."""
    return {
        f"mean/{name}": fmean(values),
        f"max/{name}": max(values),
        f"min/{name}": min(values),
        f"median/{name}": median(values),
        f"std/{name}": stdev(values) if len(values) > 1 else 0.0,
    }


def numbers(row: Row) -> dict[str, float]:
    """The metrics of an episode: the numbers at the top of its row, except bookkeeping, and the parts of its reward."""
    parts = row.get("reward_components")
    named = parts.items() if isinstance(parts, dict) else ()
    return {
        name: float(value)
        for name, value in (*row.items(), *((f"reward_components/{name}", value) for name, value in named))
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_")
    }


def aggregate(rows: Iterable[Row]) -> dict[str, Any]:
    """`agent_metrics` over all episodes, `group_level_metrics` by task, and the `key_metrics` to look at first."""
    overall: dict[str, list[float]] = defaultdict(list)
    by_task: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, value in numbers(row).items():
            overall[name].append(value)
            by_task[row["_ng_task_index"]][name].append(value)
    agent_metrics = {key: value for name in sorted(overall) for key, value in summarise(overall[name], name).items()}
    rewards = [by_task[task].get("reward", []) for task in by_task]
    agent_metrics.update(_pass_at(rewards))
    return {
        "agent_metrics": agent_metrics,
        "key_metrics": {
            name: value for name, value in agent_metrics.items() if name == "mean/reward" or name.startswith("pass@")
        },
        "group_level_metrics": [
            {
                "_ng_task_index": task,
                **{
                    key: value
                    for name in sorted(by_task[task])
                    for key, value in summarise(by_task[task][name], name).items()
                },
            }
            for task in sorted(by_task)
        ],
    }


def _pass_at(rewards: list[list[float]]) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, … and the number of repeats, over the tasks that have as many episodes."""
    most = max(map(len, rewards), default=0)
    ks = sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | ({most} if most else set()))
    found = {}
    for k in ks:
        estimates = [
            pass_at_k(len(group), sum(reward >= SOLVED for reward in group), k) for group in rewards if len(group) >= k
        ]
        found[f"pass@{k}"] = fmean(estimates)
    return found
