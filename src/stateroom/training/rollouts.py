"""Rollouts: the episodes of a model in training, with the advantage of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from stateroom.agent import MAX_STEPS
from stateroom.model import BatchModel, Item, ModelSource
from stateroom.rollout import (
    CHOSEN,
    NODE,
    EnvironmentSpec,
    Finished,
    GrownTree,
    Node,
    Row,
    Rule,
    RunPlan,
    Tree,
    branch,
    key_of,
    plan_branches,
    plan_run,
    run,
)
from stateroom.training.advantages import AdvantageMethod, advantages
from stateroom.training.export import advantages_in_groups, along_paths
from stateroom.training.token_sequences import sequences, token_advantages

ENDS_PER_TREE = 4
"""The number of episodes of a tree, for `tree`: one from its root, and others that branch off it."""

UNLIMITED = 1 << 20
"""The concurrent branches: all, so batches do not depend on timing."""


class Rollout(NamedTuple):
    """A finished episode."""

    row: Row
    """The row as in a rollouts file."""
    advantages: Sequence[float]
    """The advantage of each answer."""
    first: int = 0
    """The first answer to learn from; another episode of the same tree covers earlier ones."""


class Collected(NamedTuple):
    """The collected episodes of a training step."""

    rollouts: list[Rollout]
    rewards: list[float]
    """The rewards of the episodes that the model played from their start."""
    written: int
    """The number of tokens that the model wrote, including those that only estimate the value of a state."""
    failed: int
    """The number of failed episodes."""
    error: str | None
    """The error of the first failed episode."""


class Sample(NamedTuple):
    """A sequence of tokens to learn from."""

    ids: list[int]
    mask: list[int]
    """1 for learned tokens."""
    log_probs: list[float]
    """The log-probability of each learned token when it was written."""
    advantages: list[float]


def samples(rollouts: Iterable[Rollout]) -> list[Sample]:
    """The samples of rollouts with tokens, one per segment."""
    return [sample for rollout in rollouts for sample in _samples(rollout)]


def _samples(rollout: Rollout) -> Iterator[Sample]:
    for each in sequences(rollout.row):
        mask = [*each.mask]
        for answer, start, stop in each.steps:
            if answer < rollout.first:
                mask[start:stop] = [0] * (stop - start)
        if any(mask):
            yield Sample(each.ids, mask, each.log_probs, token_advantages(each, rollout.advantages))


@dataclass(frozen=True)
class Collector:
    """Runs the episodes of a model in training with exact tokens, as ordinary runs with sessions in a store."""

    environment: EnvironmentSpec
    env_args: Mapping[str, Any]
    store: str
    model: BatchModel
    max_steps: int = MAX_STEPS
    settings: Mapping[str, Any] = field(default_factory=dict)

    async def episodes(
        self, tasks: Sequence[Row], model: BatchModel | ModelSource, output: Path, seed: int
    ) -> list[Row]:
        """The rows of one episode per task, played by the trained model or by another one."""
        plan = plan_run(**self._options(tasks, output, seed) | {"model": model, "concurrency": len(tasks)})
        return (await self._run(plan, len(tasks) if model is self.model else 0))[0]

    async def groups(self, tasks: Sequence[Row], n: int, how: AdvantageMethod, output: Path, seed: int) -> Collected:
        """Run `n` episodes per task, as forks of one session."""
        plan = plan_run(**self._options(tasks, output, seed), group=n, concurrency=len(tasks) * n)
        rows, error = await self._run(plan, len(tasks) * n)
        values = await advantages_in_groups(rows, how, self.store)
        rollouts = [Rollout(row, values[key_of(row)]) for row in rows]
        written = sum(_written(row["response"]["output"]) for row in rows)
        return Collected(rollouts, _rewards(rows), written, len(tasks) * n - len(rows), error)

    async def vines(self, tasks: Sequence[Row], n: int, output: Path, seed: int) -> Collected:
        """Run an episode per task, and `n` continuations from each of its states to estimate their values."""
        trees, error = await self._branch(tasks, _Vine(self.model, n), output, seed)
        rollouts = []
        for tree in trees:
            values = along_paths(tree.nodes, advantages(tree.nodes, "vine"))
            rollouts += [Rollout(row, values[row[NODE]]) for row in tree.episodes if row[CHOSEN]]
        return _of_trees(trees, rollouts, error)

    async def trees(self, tasks: Sequence[Row], n: int, output: Path, seed: int) -> Collected:
        """Grow `n` trees per task: an episode, and others that branch off its states."""
        repeated = [task for task in tasks for _ in range(n)]
        trees, error = await self._branch(repeated, _Forks(self.model, seed), output, seed)
        nodes = [
            {**node, "_ng_task_index": tree.task // n} for tree in trees for node in tree.nodes
        ]  # nodes of the original task
        values = iter(advantages(nodes, "tree"))
        rollouts = []
        for tree in trees:
            gained = along_paths(tree.nodes, islice(values, len(tree.nodes)))
            paths = along_paths(tree.nodes, ([node["id"]] for node in tree.nodes))
            seen: set[str] = set()
            for row in tree.episodes:
                answers = paths[row[NODE]][1:]
                rollouts.append(Rollout(row, gained[row[NODE]], sum(node in seen for node in answers)))
                seen.update(answers)
        return _of_trees(trees, rollouts, error)

    async def _branch(
        self, tasks: Sequence[Row], rule: Rule, output: Path, seed: int
    ) -> tuple[list[GrownTree], str | None]:
        """Grow a tree per task; returns them in the order of the tasks, and the error of the first failed branch."""
        plan = plan_branches(**self._options(tasks, output, seed), rule=rule, concurrency=UNLIMITED)
        trees: list[GrownTree] = []

        def grown(tree: GrownTree) -> None:
            trees.append(tree)
            if not tree.nodes:  # the rule has not begun, and will not report the end of the first branch
                self.model.end()

        self.model.begin(len(tasks))
        report = await branch(plan, on_tree=grown)
        return sorted(trees), report.first_error

    async def _run(self, plan: RunPlan, episodes: int) -> tuple[list[Row], str | None]:
        """Run a plan with a number of episodes of the trained model, which generates for all of them at once.

        Returns the rows with a reward, sorted by index, and the error of the first failed episode.
        """
        rows: list[Row] = []

        def over(finished: Finished) -> None:
            rows.extend(filter(None, [finished.row()]))
            if episodes:
                self.model.end()

        self.model.begin(episodes)
        report = await run(plan, over)
        return sorted(rows, key=key_of), report.first_error

    def _options(self, tasks: Sequence[Row], output: Path, seed: int) -> dict[str, Any]:
        """The common options of all runs of a training."""
        return {
            "environment": self.environment,
            "env_args": self.env_args,
            "input": tasks,
            "model": self.model,
            "store": self.store,
            "output": output,
            "seed": seed,
            "max_steps": self.max_steps,
            "settings": self.settings,
            "record_tokens": "exact",
            "force": True,
        }


@dataclass(frozen=True)
class _Vine:
    """A rule for trees: an episode, and continuations from each of its states.

    These rules report the number of running branches to the model, which then generates for all of them at once. It
    already counts the first branch of each tree.
    """

    model: BatchModel
    n: int

    async def grow(self, tree: Tree) -> Node | None:
        episode, nodes = await _first(tree)
        return await _grow(tree, self.model, episode, nodes * self.n)


@dataclass(frozen=True)
class _Forks:
    """A rule for trees: an episode, and others that branch off its states at random."""

    model: BatchModel
    seed: int

    async def grow(self, tree: Tree) -> Node | None:
        episode, nodes = await _first(tree)
        rng = Random(f"{self.seed}/{tree.row['_ng_task_index']}")
        chosen = rng.choices(range(len(nodes)), k=ENDS_PER_TREE - 1) if nodes else []
        return await _grow(tree, self.model, episode, [nodes[place] for place in sorted(chosen)])


async def _first(tree: Tree) -> tuple[Node | None, list[Node]]:
    """The first episode of a tree, and its states that can branch."""
    episode = tree.best(await tree.branch(tree.root))
    return episode, [] if episode is None else [node for node in episode.path() if not node.ended]


async def _grow(tree: Tree, model: BatchModel, episode: Node | None, nodes: Sequence[Node]) -> Node | None:
    """Branch off nodes after the end of the first episode, which is returned."""
    model.begin(len(nodes))
    model.end()

    async def play(node: Node) -> None:
        await tree.branch(node)
        model.end()

    await asyncio.gather(*map(play, nodes))
    return episode


def _of_trees(trees: Sequence[GrownTree], rollouts: list[Rollout], error: str | None) -> Collected:
    """The collected episodes of trees, of which those with an answer have a reward."""
    rewards = _rewards(row for tree in trees for row in tree.episodes if row[CHOSEN])
    written = sum(_written(node["items"]) for tree in trees for node in tree.nodes)
    return Collected(rollouts, rewards, written, len(trees) - len(rewards), error)


def _rewards(rows: Iterable[Row]) -> list[float]:
    return [float(row["reward"]) for row in rows]


def _written(items: Iterable[Item]) -> int:
    """The number of tokens that a model wrote."""
    return sum(len(item.get("generation_token_ids", ())) for item in items)
