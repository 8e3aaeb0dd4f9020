"""Metrics: what was measured in episodes, aggregated over all of them and by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb, prod
from statistics import fmean, median, stdev
from typing import Any

from stateroom.rollout.rows import TOKENS, VERDICT, Key, Row, changed_fields, key_of

ALWAYS = VERDICT | {"tool_calls", "truncated", *TOKENS}
"""Fields that are measured, and not given by a task, in any row."""

MOST_EXACT = 1000
"""Episodes of one task up to which pass@k is computed with integers."""

SOLVED = 1.0
"""An episode with at least this reward counts as solved."""


class Measurements:
    """Collects what was measured in the rows of a run, apart from the numbers that their tasks came with."""

    def __init__(self, inputs: Mapping[Key, Row]) -> None:
        self.agent: Any = None
        """The model of the episodes."""
        self._inputs = inputs
        self._names = set(ALWAYS)
        self._rows: list[Row] = []

    def add(self, row: Row) -> Row:
        """Add a row; gives the numbers in it."""
        given = self._inputs.get(key_of(row))
        if given is not None:
            self._names |= changed_fields(given, row)
        self.agent = self.agent or row.get("agent_ref")
        self._rows.append({name: row[name] for name in row if isinstance(row[name], int | float) or name in ALWAYS})
        return self._rows[-1]

    def rows(self) -> list[Row]:
        """The rows with only their measurements and indices."""
        names = {*self._names, "_ng_task_index", "_ng_rollout_index"}
        return [{name: row[name] for name in row if name in names} for row in self._rows]


def pass_at_k(n: int, solved: int, k: int) -> float:
    """An unbiased estimate of the chance that one of `k` episodes is solved, from `n` episodes, some of them solved."""
    if n > MOST_EXACT:  # the exact quotient would take seconds
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


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an episode: the numbers at the top level of its row, and the components of its reward."""
    parts = row.get("reward_components")
    named = parts.items() if isinstance(parts, dict) else ()
    return {
        name: float(value)
        for name, value in (*row.items(), *((f"reward_components/{name}", value) for name, value in named))
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_")
    }


def aggregate(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`agent_metrics` over all episodes, `group_level_metrics` by task, and the most important as `key_metrics`."""
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
    """pass@k for k = 1, 2, 4, … and the number of repeats, over the tasks that have at least k episodes."""
    most = max(map(len, rewards), default=0)
    ks = sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | ({most} if most else set()))
    found = {}
    for k in ks:
        estimates = [
            pass_at_k(len(group), sum(reward >= SOLVED for reward in group), k) for group in rewards if len(group) >= k
        ]
        found[f"pass@{k}"] = fmean(estimates)
    return found
