"""Runs compared: which tasks were won and lost, where episodes part, and how difficult tasks are."""

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
"""The share of resampled differences that lie in the interval."""

MAX_DRAWS = 2_000_000
"""Tasks that the bootstrap draws at most, in all of its samples."""

MAX_SAMPLES = 10_000
"""Samples of the bootstrap, if the tasks are not too many for that."""

Outcome = Literal["won", "lost", "tied"]


class Divergence(NamedTuple):
    """The first place at which two conversations differ."""

    item: int
    """How many items before it are the same."""
    first: Item | None
    """What comes next in the first run; None if that ends here."""
    second: Item | None


@dataclass(frozen=True)
class TaskComparison:
    """A task in both runs. The first run is what the second is compared with."""

    task: int
    first: float
    """The mean reward of its episodes."""
    second: float
    episodes: tuple[int, int]
    divergence: Divergence | None = None
    """Where its first two episodes with different rewards part; None if it is tied."""
    rollout: int | None = None
    """The rollout index of these two episodes."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def outcome(self) -> Outcome:
        """How the second run did."""
        return "tied" if self.difference == 0 else "won" if self.difference > 0 else "lost"


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs of the same tasks."""

    tasks: list[TaskComparison]
    """The tasks that both have, the ones that lost the most first."""
    different: list[int] = field(default_factory=list)
    """Tasks with the same index and another content, which are left out."""
    only_first: list[int] = field(default_factory=list)
    """Tasks that have an episode with a reward only in the first run."""
    only_second: list[int] = field(default_factory=list)
    edited: list[Key] = field(default_factory=list)
    """Episodes of either run, by task and rollout, whose state a person has changed: they are left out."""

    def count(self, outcome: Outcome) -> int:
        return sum(task.outcome == outcome for task in self.tasks)

    @property
    def difference(self) -> float:
        """The mean over the tasks of the difference of their mean rewards."""
        return fmean(task.difference for task in self.tasks)

    def interval(self) -> tuple[float, float] | None:
        """The bootstrap confidence interval of the difference, by tasks drawn again; None with a single task.

        It is the same each time.
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
    """Compare two runs task by task; `BadTask` if they have no task in common.

    Tasks are the same if their index and their content are. Failed episodes have no reward, and do not count; nor do
    those that a person has edited.
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
        raise BadTask(f"{first.files.rollouts} and {second.files.rollouts} are not of the same tasks: {why}")
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
    """The rewards of the episodes that can be compared; those that cannot are added to `edited`."""
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
    """What each task is: its row or, where not all runs have an inputs file, only what the model is asked.

    Rescored rollouts have no inputs file, and in a rollout a task cannot be told from its verdict.
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
    """Where two conversations part; None if they say the same."""
    for place, (one, other) in enumerate(zip_longest(first, second)):
        if one is None or other is None or not same(_meaning(one), _meaning(other)):
            return Divergence(place, one, other)
    return None


def _meaning(item: Item) -> Any:
    """An item without what differs each time, such as ids."""
    match item.get("type", "message"):
        case "function_call":
            return ["call", item.get("name"), parsed(item.get("arguments") or "{}")]
        case "function_call_output":
            return ["result", result_of(item)]
        case "message":
            return [kind_of(item), text_of(item)]
    return {name: value for name, value in item.items() if name not in ("id", "status")}


# Profiles: how difficult tasks are in one or several runs, and which of them carry signal for training.


@dataclass
class TaskProfile:
    """A task, and the rewards of its episodes in all runs that have it."""

    run: StoredRun
    """The first of these runs."""
    task: int
    """Its index there."""
    rewards: array[float] = field(default_factory=lambda: array("d"))
    solved: int = 0
    """Episodes with at least the reward from which their run counts them as solved."""

    @property
    def environment(self) -> str:
        """The name of its environment; where the run does not tell, that of its file."""
        known = self.run.description
        return self.run.files.rollouts.stem if known is None else known.environment

    @property
    def solve_rate(self) -> float:
        return self.solved / len(self.rewards)

    @property
    def signal(self) -> bool:
        """Whether its episodes have different rewards: if all are the same, there is no advantage to learn from."""
        return len({*self.rewards}) > 1

    def metrics(self) -> dict[str, float]:
        """Mean, extremes, median and sample standard deviation of the rewards, as `mean/reward` and so on."""
        return summarise(self.rewards, "reward")

    def row(self) -> Row:
        """The task, as it was given to its run."""
        row = self.run.inputs.get((self.task, 0))
        if row is None:
            raise NotFound(f"{self.run.files.inputs} does not have task {self.task}, so it cannot be written")
        return task_fields(row)


def profile_runs(runs: Sequence[StoredRun]) -> list[TaskProfile]:
    """The tasks of runs that have episodes with a reward, each once; `BadTask` if there are none.

    Tasks are the same if their environment and their content are. Episodes that a person has edited do not count.
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
