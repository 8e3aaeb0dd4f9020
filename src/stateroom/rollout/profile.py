"""Profiles: how difficult tasks are in one or several runs, and which of them carry signal for training."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from stateroom.errors import BadTask, NotFound
from stateroom.rollout.comparison import contents_of, rewards_of
from stateroom.rollout.metrics import summarise
from stateroom.rollout.rows import Row, task_fields
from stateroom.rollout.runs import StoredRun


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
        found = self.run.inputs.get((self.task, 0))
        if found is None:
            raise NotFound(f"{self.run.files.inputs} does not have task {self.task}, so it cannot be written")
        return task_fields(found)


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
            found = tasks.setdefault(new.environment.encode() + contents[task], new)
            found.rewards.append(reward)
            found.solved += reward >= run.solved_threshold
    if not tasks:
        raise BadTask(f"no episode of {', '.join(str(run.files.rollouts) for run in runs)} has a reward")
    return [*tasks.values()]


def _digest(content: Row) -> bytes:
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).digest()
