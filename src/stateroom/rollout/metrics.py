"""Metrics: what was measured in episodes, aggregated over all of them and by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from math import comb, fsum, hypot, prod, sqrt
from operator import itemgetter
from statistics import fmean, median, stdev
from typing import Annotated, Any, Self

import msgspec

from stateroom.errors import BadData
from stateroom.rollout.repeats import across_repeats, repeat_metrics
from stateroom.rollout.rows import COST, TOKENS, VERDICT, Key, Row, changed_fields, key_of

ALWAYS = VERDICT | {"tool_calls", "truncated", *TOKENS, COST}
"""Fields that are measured, and not given by a task, in any row."""

MOST_EXACT = 1000
"""Episodes of one task up to which pass@k is computed with integers."""

SOLVED = 1.0
"""An episode with at least this reward counts as solved."""


Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The price of a model's tokens, per million."""

    input: Amount = msgspec.field(name="in", default=0.0)
    output: Amount = msgspec.field(name="out", default=0.0)
    cached: Amount | None = None
    """For input tokens that were cached; by default as for others."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The price in a text such as `in=0.15,out=0.6`; `BadData` says what is wrong with it."""
        given = dict(part.strip().partition("=")[::2] for part in text.split(","))
        try:
            return msgspec.convert({name.strip(): float(value) for name, value in given.items()}, cls)
        except (ValueError, msgspec.ValidationError):
            how = "write in=0.15,out=0.6, per million tokens, and cached=… if cached input has its own price"
            raise BadData(f"{text!r} is not a price; {how}") from None

    def cost(self, response: Row) -> Row:
        """What a response has cost, as a field of its row; none if the model does not report its tokens."""
        usage = response.get("usage")
        if not usage:
            return {}
        cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
        paid = (usage.get("input_tokens", 0) - cached) * self.input + usage.get("output_tokens", 0) * self.output
        paid += cached * (self.input if self.cached is None else self.cached)
        return {COST: round(paid / 1_000_000, 9)}


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
    """The metrics of an episode: the numbers and booleans of its row, the parts of its reward, and its tokens."""
    response, parts = row.get("response"), row.get("reward_components")
    usage = response.get("usage") if isinstance(response, dict) else None
    named = {**(usage if isinstance(usage, dict) else {}), **row}
    if isinstance(parts, dict):
        named |= {f"reward_components/{name}": value for name, value in parts.items()}
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and not name.startswith("_")
    }


def standard_error(by_task: Iterable[Sequence[float]]) -> float | None:
    """The standard error of the mean over all values, clustered by task; None if there are too few values.

    The episodes of one task are not independent of one another, so that more repeats of the same tasks do not make it
    as small as more tasks would. With a single task, it is that of the mean of its episodes.
    """
    groups = [group for group in by_task if group]
    clusters = groups if len(groups) > 1 else [[value] for group in groups for value in group]
    if len(clusters) < 2:
        return None
    values = [value for cluster in clusters for value in cluster]
    mean = fmean(values)
    # In any order of the episodes it is the same to the last digit, and no square overflows.
    spread = hypot(*sorted(fsum(value - mean for value in cluster) for cluster in clusters))
    return spread * sqrt(len(clusters) / (len(clusters) - 1)) / len(values)


def aggregate(
    rows: Iterable[Mapping[str, Any]], solved_at: float = SOLVED, given: Container[str] = ()
) -> dict[str, Any]:
    """What was measured in episodes, as NeMo Gym names it, with standard errors and pass@k besides.

    `agent_metrics` are over all episodes, and `key_metrics` the most important of them; `group_level_metrics` are by
    task, and `repeat_level_metrics` by rollout index, if there are several. An episode counts as solved from the reward
    `solved_at`. Standard errors are clustered by task. Fields that are `given` by tasks are no metrics.
    """
    episodes: dict[int, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for row in rows:
        figures = {name: value for name, value in numbers(row).items() if name not in given}
        episodes[row["_ng_task_index"]].append((row.get("_ng_rollout_index", 0), figures))
    by_task = {task: _columns(figures for _, figures in episodes[task]) for task in sorted(episodes)}
    overall = _columns(figures for each in episodes.values() for _, figures in each)
    agent_metrics: dict[str, float] = {}
    for name in sorted(overall):
        agent_metrics |= summarise(overall[name], name)
        agent_metrics |= _named_error(name, (task.get(name, ()) for task in by_task.values()))
    agent_metrics.update(_pass_at([task.get("reward", []) for task in by_task.values()], solved_at))
    key_metrics = {name: value for name, value in agent_metrics.items() if _is_key(name)}
    repeats = repeat_metrics(episodes)
    if episodes:
        indices = {rollout for each in episodes.values() for rollout, _ in each}
        agent_metrics |= {**across_repeats(repeats), "num_repeats": len(indices)}
    return {
        "agent_metrics": agent_metrics,
        "key_metrics": key_metrics,
        "group_level_metrics": [_task_metrics(task, by_task[task], episodes[task]) for task in by_task],
        "repeat_level_metrics": repeats,
    }


def _columns(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """The values of each metric."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            found[name].append(value)
    return found


def _task_metrics(
    task: int, columns: Mapping[str, Sequence[float]], episodes: Sequence[tuple[int, Mapping[str, float]]]
) -> dict[str, Any]:
    found: dict[str, Any] = {"_ng_task_index": task}
    for name in sorted(columns):
        found |= summarise(columns[name], name)
    infos = [
        {"rollout_id": f"{task}:{rollout}", "_ng_task_index": task, "_ng_rollout_index": rollout, **figures}
        for rollout, figures in sorted(episodes, key=itemgetter(0))
    ]
    counts = {"num_rollouts": len(infos), "expected_num_rollouts": len(infos), "missing_num_rollouts": 0}
    return {**found, **counts, "reward_profile_completion_pct": 100.0, "rollout_infos": infos}


def _is_key(name: str) -> bool:
    return name == "stderr/reward" or name.startswith(("mean/", "pass@", "stderr/pass@"))


def _named_error(name: str, by_task: Iterable[Sequence[float]]) -> dict[str, float]:
    error = standard_error(by_task)
    return {} if error is None else {f"stderr/{name}": error}


def _pass_at(rewards: list[list[float]], solved_at: float) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, … and the number of repeats, over the tasks that have at least k episodes."""
    most = max(map(len, rewards), default=0)
    ks = sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | ({most} if most else set()))
    found = {}
    for k in ks:
        estimates = [
            pass_at_k(len(group), sum(reward >= solved_at for reward in group), k)
            for group in rewards
            if len(group) >= k
        ]
        found[f"pass@{k}"] = fmean(estimates)
        if len(estimates) > 1:
            found |= _named_error(f"pass@{k}", ([estimate] for estimate in estimates))
    return found
