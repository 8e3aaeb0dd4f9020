"""Rollouts by our own agent loop, with the model of a trainer, and an advantage for each token."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from stateroom.adapters.trl.process import Source, background_loop, seed_of
from stateroom.adapters.trl.trainer import TrainerModel
from stateroom.agent import MAX_STEPS
from stateroom.errors import BadTask, EnvironmentFailed, InvalidArguments
from stateroom.model import Message
from stateroom.rollout import (
    Branching,
    Node,
    StoredEpisode,
    StoredRun,
    Tree,
    TreeFiles,
    branch,
    plan_fields,
    plan_run,
    run,
)
from stateroom.training import advantages_of, sequences, token_advantages

Row = dict[str, Any]

UNLIMITED = 1 << 20
"""Branches that run at a time: all, so that batches do not depend on which of them is quicker."""

How = Literal["grpo", "rloo", "vine"]
"""How the advantages of the answers are estimated; see `stateroom.training.advantages`."""

Rollout = tuple[Row, Sequence[float]]
"""An episode that ended: its row in a rollouts file, and the advantages of its answers."""


class RolloutFunction:
    """A `rollout_func` of TRL: runs an episode for each prompt, and returns its tokens as they were generated.

    What follows the prompt has at most `max_completion_length` tokens, and `max_tool_calling_iterations` limits the
    answers. An episode whose tokens were split into several segments is learned from by its first.
    """

    def __init__(self, source: Source, dataset: Any, how: How, n: int) -> None:
        if how not in ("grpo", "rloo", "vine"):
            raise InvalidArguments(f"how: there is no {how!r}; there are grpo, rloo and vine")
        self._source = source
        self._how: How = how
        self._n = n
        self._calls = 0
        self._rows: dict[str, str] = {}
        for prompt, row in zip(dataset["prompt"], dataset["row"], strict=True):
            if self._rows.setdefault(_key(prompt), row) != row:
                raise BadTask(f"two different tasks have the same prompt, by which rollouts find theirs: {prompt}")

    def __call__(self, prompts: Sequence[list[Message]], trainer: Any) -> dict[str, list[Any]]:
        self._calls += 1
        rows = [self._row(prompt) for prompt in prompts]
        environment = self._source.make_environment()
        model = TrainerModel(trainer, len(rows), calls_tools=bool(environment.tools))
        most = trainer.args.max_tool_calling_iterations
        options = {
            "concurrency": len(rows),
            "seed": seed_of(environment.name, self._source.seed, self._calls),
            "max_steps": MAX_STEPS if most is None else most + 1,
            "tokens": "exact",
        }
        collect = self._trees if self._how == "vine" else self._groups
        with TemporaryDirectory(prefix="stateroom-") as folder:
            found = model.serve(background_loop(), collect(rows, model, Path(folder) / "rollouts.jsonl", options))
        return _columns(found)

    def _row(self, prompt: list[Message]) -> str:
        row = self._rows.get(_key(prompt))
        if row is None:
            raise BadTask(f"there is no task with this prompt; train on the spec's train_dataset: {prompt}")
        return row

    async def _groups(self, rows: list[str], model: TrainerModel, path: Path, options: Row) -> list[Rollout]:
        """A group of forks for each task."""
        trainer, counts = model.trainer, Counter(rows)
        for count in counts.values():
            if trainer.model.training and count % trainer.num_generations:
                told = f"this process has {count} rollouts of a group of {trainer.num_generations}"
                raise InvalidArguments(f"{told}; let each process have whole groups, by per_device_train_batch_size")
        found: dict[str, list[Rollout]] = {}
        for count in {*counts.values()}:
            tasks = [row for row in counts if counts[row] == count]
            model.begin(len(tasks) * count)
            plan = plan_run(
                self._source.environment,
                env_args=self._source.env_args,
                input=map(json.loads, tasks),
                model=model,
                group=count,
                store=self._source.store,
                output=path,
                force=True,
                **options,
            )
            report = await run(plan, lambda _: model.end())
            done = sorted(StoredRun(plan.files).episodes(), key=lambda each: (each.task, each.rollout))
            _check(done, len(tasks) * count, report.first_error)
            values = await advantages_of(StoredRun(plan.files), self._how)
            for each in done:
                found.setdefault(tasks[each.task], []).append((each.row, values[each.task, each.rollout]))
        return [found[row].pop(0) for row in rows]

    async def _trees(self, rows: list[str], model: TrainerModel, path: Path, options: Row) -> list[Rollout]:
        """A tree for each rollout, whose trunk it is."""
        source, tasks = self._source, [*map(json.loads, rows)]
        model.begin(len(rows))
        fields = plan_fields(
            source.environment, source.env_args, tasks, model, source.store, None, path, kind=TreeFiles
        )
        plan = Branching(**fields, rule=_Vine(self._n, model), **{**options, "concurrency": UNLIMITED})
        report = await branch(plan)
        trunks = sorted(StoredRun(plan.files).answers(), key=lambda each: each.task)
        _check(trunks, len(rows), report.first_error)
        values = await advantages_of(StoredRun(plan.files), "vine")
        return [(each.row, values[each.task, each.rollout]) for each in trunks]


@dataclass(frozen=True)
class _Vine:
    """A rule for trees: `MonteCarlo`, which tells the model how many branches run. It knows of the trunks."""

    n: int
    model: TrainerModel

    async def grow(self, tree: Tree) -> Node | None:
        episode = tree.best(await tree.branch(tree.root))
        nodes = [] if episode is None else [node for node in episode.path() if not node.ended] * self.n
        self.model.begin(len(nodes))
        self.model.end()

        async def play(node: Node) -> None:
            await tree.branch(node)
            self.model.end()

        await asyncio.gather(*map(play, nodes))
        return episode


def _key(prompt: Sequence[Message]) -> str:
    """A prompt as text; Arrow adds empty fields to messages."""
    said = [{name: value for name, value in message.items() if value is not None} for message in prompt]
    return json.dumps(said, sort_keys=True)


def _check(found: Sequence[StoredEpisode], wanted: int, error: str | None) -> None:
    missing = wanted - sum(not each.failed for each in found)
    if missing:
        why = error or "an agent waits for input, and nobody answers"
        raise EnvironmentFailed(f"{missing} of {wanted} rollouts have no reward: {why}")


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Rollouts as TRL takes them, up to the last token that the model has written."""
    columns: dict[str, list[Any]] = {}
    for row, steps in rollouts:
        sequence = sequences(row)[0]
        said = slice(sequence.completion.start, max(step.stop for step in sequence.steps if step.stop > step.start))
        values = {
            "prompt_ids": sequence.prompt,
            "completion_ids": sequence.ids[said],
            "env_mask": sequence.mask[said],
            "logprobs": sequence.log_probs[said],
            "token_advantages": token_advantages(sequence, steps)[said],
            "reward": float(row["reward"]),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns
