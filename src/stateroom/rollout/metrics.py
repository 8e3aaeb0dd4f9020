"""Metrics: measurements of episodes, aggregated over all episodes, by task, and by repeat.

Names and definitions follow NeMo Gym, so its tools can read them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from heapq import merge
from itertools import chain, groupby, islice
from math import atan, comb, cos, fsum, pi, prod, sin, sqrt
from statistics import NormalDist, fmean, median, quantiles, stdev
from typing import Annotated, Any, Self

import msgspec
from pydantic import with_config
from typing_extensions import TypedDict

from stateroom.errors import BadData
from stateroom.rollout.lazy import LazyMap, LazySequence, plain
from stateroom.rollout.rows import COST, MAX_NUMBER, TOKENS, VERDICT, Row

ALWAYS = VERDICT | {"tool_calls", "truncated", *TOKENS, COST}
"""Fields that are always measurements, never part of a task."""

MAX_EXACT_EPISODES = 1000
"""The most episodes per task for which pass@k is computed with integers."""

SOLVED = 1.0
"""An episode with at least this reward counts as solved."""

CONFIDENCE = 0.95
"""The confidence level of intervals over repeats."""

MAX_EXACT_FREEDOM = 1000
"""The most degrees of freedom for which t quantiles are exact."""

EPISODES_PER_PART = 1 << 16
"""Episodes that are sorted at once."""

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The price of a model's tokens, per million."""

    input: Amount = msgspec.field(name="in", default=0.0)
    output: Amount = msgspec.field(name="out", default=0.0)
    cached: Amount | None = None
    """The price of cached input tokens; by default the same as others."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a price such as `in=0.15,out=0.6`. Raises `BadData` if it is invalid."""
        given = dict(part.strip().partition("=")[::2] for part in text.split(","))
        try:
            return msgspec.convert({name.strip(): float(value) for name, value in given.items()}, cls)
        except (ValueError, msgspec.ValidationError):
            how = "give in=0.15,out=0.6, per million tokens, and optionally cached=… for cached input"
            raise BadData(f"{text!r} is not a price; {how}") from None

    def cost(self, response: Row) -> Row:
        """The cost of a response as a field of its row; empty if the model does not report tokens."""
        usage = response.get("usage")
        if not usage:
            return {}
        cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
        paid = (usage.get("input_tokens", 0) - cached) * self.input + usage.get("output_tokens", 0) * self.output
        paid += cached * (self.input if self.cached is None else self.cached)
        return {COST: round(paid / 1_000_000, 9)}


def pass_at_k(n: int, solved: int, k: int) -> float:
    """An unbiased estimate of the probability that at least one of `k` episodes is solved, from `n` episodes."""
    if n > MAX_EXACT_EPISODES:  # the exact quotient would take seconds
        return 1.0 - prod((n - solved - index) / (n - index) for index in range(min(k, n - solved + 1)))
    return 1.0 - comb(n - solved, k) / comb(n, k)


def summarise(values: Sequence[float], name: str) -> dict[str, float]:
    """Mean, extremes, median and sample standard deviation of one metric."""
    values = sorted(values)
    return {
        f"mean/{name}": fmean(values),
        f"max/{name}": values[-1],
        f"min/{name}": values[0],
        f"median/{name}": median(values),
        f"std/{name}": stdev(values) if len(values) > 1 else 0.0,
    }


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an episode: the numbers and booleans of its row, the parts of its reward, and its tokens.

    NaN, infinities and numbers with an infinite sum are skipped.
    """
    response, parts = row.get("response"), row.get("reward_components")
    usage = response.get("usage") if isinstance(response, dict) else None
    named = {**(usage if isinstance(usage, dict) else {}), **row}
    if isinstance(parts, dict):
        named |= {f"reward_components/{name}": value for name, value in parts.items()}
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and abs(value) <= MAX_NUMBER and not name.startswith("_")
    }


def standard_error(by_task: Iterable[Sequence[float]]) -> float | None:
    """The standard error of the mean over all values, clustered by task; None if there are too few values.

    Episodes of one task are not independent, so more repeats reduce the error less than more tasks. For a single task,
    it is the standard error over its episodes.
    """
    clusters = _Clusters()
    for values in by_task:
        clusters.add(values)
    return clusters.error()


@with_config(use_attribute_docstrings=True)
class EpisodeMetrics(TypedDict):
    """The metrics of episodes as in NeMo Gym, plus standard errors and pass@k."""

    agent_metrics: dict[str, float | None]
    """Over all episodes."""
    key_metrics: dict[str, float | None]
    """The most important ones."""
    group_level_metrics: list[dict[str, Any]]
    """The metrics of each task, with its episodes."""
    repeat_level_metrics: list[dict[str, float | None]]
    """The metrics of each rollout index, if there are several."""


def aggregate(
    rows: Iterable[Mapping[str, Any]], solved_threshold: float = SOLVED, given: Container[str] = ()
) -> EpisodeMetrics:
    """Aggregate the metrics of episodes. An episode with at least the reward `solved_threshold` counts as solved.

    Standard errors are clustered by task. Fields `given` by tasks are not metrics.
    """
    return plain(aggregate_lazily(rows, solved_threshold, given))  # type: ignore[no-any-return]


def aggregate_lazily(
    rows: Iterable[Mapping[str, Any]], solved_threshold: float = SOLVED, given: Container[str] = ()
) -> dict[str, Any]:
    """Like `aggregate`, but metrics of tasks, rollouts and repeats are computed on access.

    For a long run, they take far more memory than the data behind them.
    """
    figures = _figures(rows, given)
    repeats = _repeats_of(figures)
    overall = _overall(figures, repeats, solved_threshold)
    return {
        "agent_metrics": overall,
        "key_metrics": key_metrics(overall),
        "group_level_metrics": LazyMap(partial(_task_metrics, figures), figures.by_task),
        "repeat_level_metrics": _repeat_metrics(figures, repeats),
    }


def agent_metrics(rows: Iterable[Mapping[str, Any]], solved_threshold: float = SOLVED) -> dict[str, float]:
    """Only the metrics over all episodes, which is faster."""
    figures = _figures(rows, ())
    return _overall(figures, _repeats_of(figures), solved_threshold)


def concat_runs(runs: Iterable[Iterable[Mapping[str, Any]]]) -> Iterator[Row]:
    """The rows of several runs as one run, with distinct tasks for each."""
    first = 0
    for rows in runs:
        last = -1
        for row in rows:
            last = max(last, row["_ng_task_index"])
            yield {**row, "_ng_task_index": first + row["_ng_task_index"]}
        first += last + 1


def key_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The most important of the metrics over all episodes."""
    return {name: value for name, value in metrics.items() if _is_key(name)}


def _figures(rows: Iterable[Mapping[str, Any]], given: Container[str]) -> Figures:
    figures = Figures()
    for row in rows:
        measured = {name: value for name, value in numbers(row).items() if name not in given}
        figures.add(row["_ng_task_index"], row.get("_ng_rollout_index", 0), measured)
    return figures


def _overall(figures: Figures, repeats: Sequence[Sequence[int]], solved_threshold: float) -> dict[str, float]:
    metrics = _summaries(figures) | _pass_at(figures, solved_threshold)
    if len(figures):
        metrics |= {**_across_repeats(figures, repeats), "num_repeats": len(repeats)}
    return metrics


def _summaries(figures: Figures) -> dict[str, float]:
    """All metrics over all episodes, with their standard errors."""
    errors, episodes = _standard_errors(figures), array("I", figures.in_order())
    metrics: dict[str, float] = {}
    for name in figures.names:  # one at a time, because the columns of a long run take much memory
        metrics |= summarise(figures.column(name, episodes), name)
        if name in errors:
            metrics[f"stderr/{name}"] = errors[name]
    return metrics


def _standard_errors(figures: Figures) -> dict[str, float]:
    """The standard errors of the metrics that have one."""
    clusters: dict[str, _Clusters] = defaultdict(_Clusters)
    for episodes in figures.by_task:
        for name, values in figures.columns(episodes).items():
            clusters[name].add(values)
    errors = ((name, each.error()) for name, each in clusters.items())
    return {name: error for name, error in errors if error is not None}


def _task_metrics(figures: Figures, episodes: Sequence[int]) -> dict[str, Any]:
    columns = figures.columns(episodes)
    metrics: dict[str, Any] = {"_ng_task_index": figures.tasks[episodes[0]]}
    for name in sorted(columns):
        metrics |= summarise(columns[name], name)
    infos = LazyMap(partial(_info, figures), array("I", sorted(episodes, key=figures.rollouts.__getitem__)))
    counts = {"num_rollouts": len(infos), "expected_num_rollouts": len(infos), "missing_num_rollouts": 0}
    return {**metrics, **counts, "reward_profile_completion_pct": 100.0, "rollout_infos": infos}


def _info(figures: Figures, episode: int) -> dict[str, Any]:
    task, rollout = figures.tasks[episode], figures.rollouts[episode]
    indices = {"rollout_id": f"{task}:{rollout}", "_ng_task_index": task, "_ng_rollout_index": rollout}
    return {**indices, **figures.of(episode)}


def _is_key(name: str) -> bool:
    return name == "stderr/reward" or name.startswith(("mean/", "pass@", "stderr/pass@"))


def _pass_at(figures: Figures, solved_threshold: float) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, … and the number of repeats, over the tasks that have at least k episodes."""
    numbers, solved = array("I"), array("I")
    for episodes in figures.by_task:
        rewards = figures.column("reward", episodes)
        numbers.append(len(rewards))
        solved.append(sum(reward >= solved_threshold for reward in rewards))
    most = max(numbers, default=0)
    ks = sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | ({most} if most else set()))
    metrics = {}
    for k in ks:
        counts = zip(numbers, solved, strict=True)
        estimates = array("d", (pass_at_k(number, some, k) for number, some in counts if number >= k))
        metrics[f"pass@{k}"] = fmean(estimates)
        if (error := _Clusters(estimates).error()) is not None:
            metrics[f"stderr/pass@{k}"] = error
    return metrics


class _Clusters:
    """Clustered values for a standard error; each initial value is its own cluster."""

    def __init__(self, values: Sequence[float] = ()) -> None:
        self._values = array("d", values)
        self._sizes = array("I", [1]) * len(values)

    def add(self, values: Sequence[float]) -> None:
        """Add a cluster."""
        if values:
            self._values.extend(values)
            self._sizes.append(len(values))

    def error(self) -> float | None:
        """The standard error of the mean; a single cluster is split into its values."""
        values = self._values
        sizes = self._sizes if len(self._sizes) > 1 else array("I", [1]) * len(values)
        if len(sizes) < 2:
            return None
        mean, left = fmean(values), iter(values)
        # `fsum` is exact, so the order of the episodes does not matter; and squares cannot overflow.
        sums = array("d", (fsum(value - mean for value in islice(left, size)) for size in sizes))
        largest = max(map(abs, sums)) or 1.0
        spread = largest * sqrt(fsum((each / largest) ** 2 for each in sums))
        return spread * sqrt(len(sizes) / (len(sizes) - 1)) / len(values)


# Repeats.


def _repeats_of(figures: Figures) -> Groups:
    """The episodes of each repeat, by its rollout index."""
    return Groups(figures.rollouts, figures.in_order())


def _repeat_metrics(figures: Figures, repeats: Sequence[Sequence[int]]) -> Sequence[dict[str, Any]]:
    """The metrics of each repeat over its tasks, computed on access; empty for a single repeat."""
    return LazyMap(partial(_repeat, figures), repeats) if len(repeats) > 1 else []


def _repeat(figures: Figures, episodes: Sequence[int]) -> dict[str, Any]:
    counted = _one_per_task(figures, episodes)
    return {
        "_ng_rollout_index": figures.rollouts[episodes[0]],
        "sample_count": len(counted),
        "missing_count": len(figures.by_task) - len(counted),
        **{
            f"{statistic}/{name}": value
            for name, values in sorted(figures.columns(counted).items())
            for statistic, value in _statistics(values).items()
        },
    }


def _one_per_task(figures: Figures, episodes: Sequence[int]) -> list[int]:
    """The last episode of each task in a repeat."""
    return [*{figures.tasks[episode]: episode for episode in episodes}.values()]


def _across_repeats(figures: Figures, repeats: Sequence[Sequence[int]]) -> dict[str, float]:
    """How the mean of each metric varies between repeats; empty for a single repeat."""
    means: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for episodes in repeats if len(repeats) > 1 else ():
        for name, values in figures.columns(_one_per_task(figures, episodes)).items():
            means[name].append(fmean(values))
    metrics: dict[str, float] = {}
    for name in sorted(means):
        summary = _statistics(means[name])
        summary["se"] = summary.pop("sem")
        metrics |= {
            f"{stat}_across_repeats/mean/{name}": value for stat, value in summary.items() if stat not in ("p25", "p75")
        }
    return metrics


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """The statistics of values, with the confidence interval of the mean if there are several."""
    values = [*values]  # an array creates a new number on each access
    several = len(values) > 1
    mean, deviation = fmean(values), stdev(values) if several else 0.0
    error = deviation / sqrt(len(values))
    first, _, third = quantiles(values, method="inclusive") if several else (values[0],) * 3
    statistics = {
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
        margin = error * _t_quantile(len(values) - 1)
        statistics |= {"ci_low_95": mean - margin, "ci_high_95": mean + margin}
    return statistics


@cache
def _t_quantile(freedom: int) -> float:
    """The number that bounds the middle 95 % of Student's t distribution with some degrees of freedom."""
    if freedom > MAX_EXACT_FREEDOM:  # the Cornish-Fisher expansion is as accurate
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


# The metrics of many episodes, in arrays.


class Figures:
    """The metrics of episodes, numbered in the order added, in 8 bytes per metric and 28 per episode.

    Raises `OverflowError` for a task or rollout index of more than 64 bits.
    """

    def __init__(self) -> None:
        self.tasks = array("q")
        self.rollouts = array("q")
        self._values = array("d")
        self._starts = array("Q")
        """The position of the first value of each episode."""
        self._kinds = array("I")
        """The names of the values of each episode."""
        self._names: list[tuple[str, ...]] = []
        self._kind_of: dict[tuple[str, ...], int] = {}

    def add(self, task: int, rollout: int, figures: Mapping[str, float]) -> None:
        """Add an episode."""
        names = tuple(figures)
        kind = self._kind_of.setdefault(names, len(self._names))
        if kind == len(self._names):
            self._names.append(names)
        self.tasks.append(task)
        self.rollouts.append(rollout)
        self._kinds.append(kind)
        self._starts.append(len(self._values))
        self._values.extend(figures.values())

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def names(self) -> list[str]:
        """The names of all metrics."""
        return sorted(set(chain.from_iterable(self._names)))

    def of(self, episode: int) -> dict[str, float]:
        """The metrics of an episode."""
        names, start = self._names[self._kinds[episode]], self._starts[episode]
        return dict(zip(names, self._values[start : start + len(names)], strict=True))

    def columns(self, episodes: Iterable[int]) -> dict[str, array[float]]:
        """The values of each metric in some episodes, in their order."""
        columns: dict[str, array[float]] = defaultdict(lambda: array("d"))
        for kind, alike in groupby(episodes, self._kinds.__getitem__):
            starts = array("Q", map(self._starts.__getitem__, alike))
            for place, name in enumerate(self._names[kind]):
                columns[name].extend(map(self._values.__getitem__, map(place.__add__, starts)))
        return columns

    def column(self, name: str, episodes: Iterable[int]) -> array[float]:
        """The values of one metric in the given episodes that have it."""
        column = array("d")
        for kind, alike in groupby(episodes, self._kinds.__getitem__):
            if name in self._names[kind]:
                place = self._names[kind].index(name)
                column.extend(self._values[self._starts[episode] + place] for episode in alike)
        return column

    @cached_property
    def by_task(self) -> Groups:
        """The episodes of each task, by index. Call it after adding all."""
        return Groups(self.tasks, range(len(self)))

    def in_order(self) -> Iterable[int]:
        """All episodes, grouped by task in order of appearance."""
        groups = self.by_task
        started = array("I", bytes(4 * len(self)))  # the number of the group that begins with an episode, or 0
        for number in range(len(groups)):
            started[groups.first(number)] = number + 1
        return (episode for number in started if number for episode in groups[number - 1])


def _parts(episodes: Iterable[int]) -> Iterator[list[int]]:
    """Episodes in small lists to sort: a number in a list takes ten times the memory as in an array."""
    left = iter(episodes)
    return iter(lambda: [*islice(left, EPISODES_PER_PART)], [])


class Groups(LazySequence[Sequence[int]]):
    """Episodes grouped by index; each group keeps the given order."""

    def __init__(self, indices: Sequence[int], episodes: Iterable[int]) -> None:
        sorted_parts = [array("I", sorted(part, key=indices.__getitem__)) for part in _parts(episodes)]
        self._order = array("I", merge(*sorted_parts, key=indices.__getitem__))
        self._bounds = array("I")
        before = None
        for place, episode in enumerate(self._order):
            if indices[episode] != before:
                self._bounds.append(place)
                before = indices[episode]
        self._bounds.append(len(self._order))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _item(self, index: int) -> Sequence[int]:
        return self._order[self._bounds[index] : self._bounds[index + 1]]

    def first(self, index: int) -> int:
        """The first episode of a group."""
        return self._order[self._bounds[index]]
