"""Compare runs: wins and losses by task, where episodes diverge, and how difficult tasks are."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, zip_longest
from operator import itemgetter
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple

from stateroom.errors import BadTask, NotFound
from stateroom.model import Item, kind_of, text_of
from stateroom.rollout.metrics import summarise
from stateroom.rollout.rows import EDITED, Key, Row, task_fields
from stateroom.rollout.runs import StoredRun
from stateroom.session import parsed, result_of, same

CONFIDENCE = 0.95
"""The share of resampled differences in the interval."""

MAX_DRAWS = 2_000_000
"""The most tasks that the bootstrap draws, over all samples."""

MAX_SAMPLES = 10_000
"""The number of bootstrap samples, reduced if there are many tasks."""

Outcome = Literal["won", "lost", "tied"]


class Divergence(NamedTuple):
    """The first place at which two conversations differ."""

    item: int
    """The number of equal items before it."""
    first: Item | None
    """The next item in the first run; None if its conversation ends here."""
    second: Item | None


@dataclass(frozen=True)
class TaskComparison:
    """A task in both runs. The first run is the baseline."""

    task: int
    first: float
    """The mean reward of its episodes."""
    second: float
    episodes: tuple[int, int]
    divergence: Divergence | None = None
    """Where the first two episodes with different rewards diverge; None if the task is tied."""
    rollout: int | None = None
    """The rollout index of these two episodes."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def outcome(self) -> Outcome:
        """The outcome for the second run."""
        return "tied" if self.difference == 0 else "won" if self.difference > 0 else "lost"


@dataclass(frozen=True)
class RunComparison:
    """The comparison of two runs of the same tasks."""

    tasks: list[TaskComparison]
    """The common tasks, the largest losses first."""
    different: list[int] = field(default_factory=list)
    """Tasks with the same index but different content, which are skipped."""
    only_first: list[int] = field(default_factory=list)
    """Tasks that have rewards only in the first run."""
    only_second: list[int] = field(default_factory=list)
    edited: list[Key] = field(default_factory=list)
    """Episodes of either run, by task and rollout, that a person edited, which are skipped."""

    def count(self, outcome: Outcome) -> int:
        return sum(task.outcome == outcome for task in self.tasks)

    @property
    def difference(self) -> float:
        """The mean over tasks of the difference in mean reward."""
        return fmean(task.difference for task in self.tasks)

    def interval(self) -> tuple[float, float] | None:
        """The bootstrap confidence interval of the difference, resampled by task; None for a single task.

        It is deterministic.
        """
        differences = [task.difference for task in self.tasks]
        if len(differences) < 2:
            return None
        rng, size = Random(0), len(differences)
        samples = max(1000, min(MAX_SAMPLES, MAX_DRAWS // size))
        means = sorted(fmean(rng.choices(differences, k=size)) for _ in range(samples))
        outside = round(samples * (1 - CONFIDENCE) / 2)
        return means[outside], means[-1 - outside]


def compare_runs(first: StoredRun, second: StoredRun) -> RunComparison:
    """Compare two runs task by task. Raises `BadTask` if they have no common task.

    Tasks are the same if their index and content are equal. Failed episodes and those that a person edited are skipped.
    """
    edited: set[Key] = set()
    rewards = [rewards_of(run, edited) for run in (first, second)]
    one, other = ({key[0] for key in each} for each in rewards)
    whole = bool(first.inputs and second.inputs)
    contents = [dict(contents_of(run, whole)) for run in (first, second)]
    different = sorted(task for task in one & other if not same(contents[0][task], contents[1][task]))
    common = sorted((one & other) - {*different})
    if not common:
        why = f"task {different[0]} differs" if different else "no task has a reward in both"
        raise BadTask(f"cannot compare {first.files.rollouts} and {second.files.rollouts}: {why}")
    means = [_means(each, common) for each in rewards]
    pairs = {task: _pair(task, *rewards) for task in common if means[0][task][0] != means[1][task][0]}
    parted = _divergences(first, second, [key for key in pairs.values() if key is not None])
    tasks = [
        TaskComparison(
            task,
            means[0][task][0],
            means[1][task][0],
            (means[0][task][1], means[1][task][1]),
            parted.get(pair) if (pair := pairs.get(task)) is not None else None,
            None if pair is None else pair[1],
        )
        for task in common
    ]
    tasks.sort(key=lambda task: (task.difference, task.task))
    left_out = {task for task, _ in edited}
    return RunComparison(
        tasks, different, sorted(one - other - left_out), sorted(other - one - left_out), sorted(edited)
    )


def rewards_of(run: StoredRun, edited: set[Key]) -> dict[Key, float]:
    """The rewards of the comparable episodes; edited episodes are added to `edited`."""
    rewards: dict[Key, float] = {}
    for episode in run.answers():
        if episode.row.get(EDITED):
            edited.add(episode.key)
        elif episode.reward is not None:
            rewards[episode.key] = episode.reward
    return rewards


def _means(rewards: dict[Key, float], tasks: Sequence[int]) -> dict[int, tuple[float, int]]:
    """The mean reward of each task, and the number of its episodes."""
    by_task = defaultdict(list)
    for (task, _), reward in rewards.items():
        by_task[task].append(reward)
    return {task: (fmean(by_task[task]), len(by_task[task])) for task in tasks}


def contents_of(run: StoredRun, whole: bool) -> Iterator[tuple[int, Row]]:
    """The content of each task: its row or, unless all runs have an inputs file, only the prompt.

    Rescored rollouts lack an inputs file, and a rollout row mixes the fields of the task and the verdict.
    """
    if not whole:
        yield from ((each.task, {"asked": each.row.get("responses_create_params")}) for each in run.answers())
        return
    for task, keys in groupby(run.inputs, itemgetter(0)):
        row = run.inputs[next(keys)]
        yield task, {name: value for name, value in task_fields(row).items() if name != "agent_ref"}


def _pair(task: int, first: dict[Key, float], second: dict[Key, float]) -> Key | None:
    """The first rollout of a task that has different rewards in two runs."""
    keys = sorted(key for key in first if key[0] == task and key in second and first[key] != second[key])
    return keys[0] if keys else None


def _divergences(first: StoredRun, second: StoredRun, keys: list[Key]) -> dict[Key, Divergence]:
    chosen = frozenset(keys)
    before = {episode.key: episode.items for episode in first.episodes(chosen)}
    return {
        episode.key: parting
        for episode in second.episodes(chosen)
        if (parting := _parting(before[episode.key], episode.items)) is not None
    }


def _parting(first: list[Item], second: list[Item]) -> Divergence | None:
    """Where two conversations diverge; None if they are equal."""
    for place, (one, other) in enumerate(zip_longest(first, second)):
        if one is None or other is None or not same(_meaning(one), _meaning(other)):
            return Divergence(place, one, other)
    return None


def _meaning(item: Item) -> Any:
    """An item without parts that always differ, such as ids."""
    match item.get("type", "message"):
        case "function_call":
            return ["call", item.get("name"), parsed(item.get("arguments") or "{}")]
        case "function_call_output":
            return ["result", result_of(item)]
        case "message":
            return [kind_of(item), text_of(item)]
    return {name: value for name, value in item.items() if name not in ("id", "status")}


# Profiles: how difficult tasks are in one or more runs, and which of them carry signal for training.


@dataclass
class TaskProfile:
    """A task with the rewards of its episodes in all runs."""

    run: StoredRun
    """The first of these runs."""
    task: int
    """The index of the task in that run."""
    rewards: array[float] = field(default_factory=lambda: array("d"))
    solved: int = 0
    """Episodes with at least the solved threshold of their run."""

    @property
    def environment(self) -> str:
        """The name of the environment or, if the run does not record it, of the file."""
        known = self.run.description
        return self.run.files.rollouts.stem if known is None else known.environment

    @property
    def solve_rate(self) -> float:
        return self.solved / len(self.rewards)

    @property
    def signal(self) -> bool:
        """Whether its episodes have different rewards; equal rewards give no advantage to learn from."""
        return len({*self.rewards}) > 1

    def metrics(self) -> dict[str, float]:
        """Mean, extremes, median and sample standard deviation of the rewards, as `mean/reward` and so on."""
        return summarise(self.rewards, "reward")

    def row(self) -> Row:
        """The task as given to its run."""
        row = self.run.inputs.get((self.task, 0))
        if row is None:
            raise NotFound(f"cannot write task {self.task}: {self.run.files.inputs} does not have it")
        return task_fields(row)


def profile_runs(runs: Sequence[StoredRun]) -> list[TaskProfile]:
    """The distinct tasks of runs with rewards. Raises `BadTask` without any reward.

    Tasks are the same if their environment and content are equal. Episodes that a person edited are skipped.
    """
    whole = all(run.inputs for run in runs)
    tasks: dict[bytes, TaskProfile] = {}
    for run in runs:
        contents = {task: _digest(content) for task, content in contents_of(run, whole)}
        for (task, _), reward in sorted(rewards_of(run, set()).items()):
            new = TaskProfile(run, task)
            profile = tasks.setdefault(new.environment.encode() + contents[task], new)
            profile.rewards.append(reward)
            profile.solved += reward >= run.solved_threshold
    if not tasks:
        raise BadTask(f"no episode of {', '.join(str(run.files.rollouts) for run in runs)} has a reward")
    return [*tasks.values()]


def _digest(content: Row) -> bytes:
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).digest()
