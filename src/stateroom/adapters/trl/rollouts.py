"""Rollouts by our own agent loop, with the model of a trainer, and an advantage for each token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from stateroom.adapters.trl.process import Source, background_loop, seed_of
from stateroom.adapters.trl.trainer import TrainerModel
from stateroom.agent import MAX_STEPS
from stateroom.errors import BadTask, EnvironmentFailed, InvalidArguments
from stateroom.model import Message
from stateroom.training import Collected, Collector, Rollout, sequences, token_advantages

How = Literal["grpo", "rloo", "vine"]
"""How the advantages of the answers are estimated; see `stateroom.training.advantages`."""


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
        source, most = self._source, trainer.args.max_tool_calling_iterations
        environment = source.make_environment()
        model = TrainerModel(trainer, len(rows), calls_tools=bool(environment.tools))
        max_steps = MAX_STEPS if most is None else most + 1
        collector = Collector(source.environment, source.env_args, source.store, model, max_steps)
        seed = seed_of(environment.name, source.seed, self._calls)
        collect = self._vines if self._how == "vine" else self._groups
        with TemporaryDirectory(prefix="stateroom-") as folder:
            found = collect(rows, collector, Path(folder) / "rollouts.jsonl", seed)
            return _columns(model.serve(background_loop(), found))

    def _row(self, prompt: list[Message]) -> str:
        row = self._rows.get(_key(prompt))
        if row is None:
            raise BadTask(f"there is no task with this prompt; train on the spec's train_dataset: {prompt}")
        return row

    async def _groups(self, rows: list[str], collector: Collector, output: Path, seed: int) -> list[Rollout]:
        """A group of forks for each task."""
        trainer, counts = collector.model.trainer, Counter(rows)  # type: ignore[attr-defined]
        for count in counts.values():
            if trainer.model.training and count % trainer.num_generations:
                told = f"this process has {count} rollouts of a group of {trainer.num_generations}"
                raise InvalidArguments(f"{told}; let each process have whole groups, by per_device_train_batch_size")
        found: dict[str, list[Rollout]] = {}
        for count in {*counts.values()}:
            tasks = [row for row in counts if counts[row] == count]
            collected = await collector.groups([*map(json.loads, tasks)], count, self._how, output, seed)
            for place, rollout in enumerate(_checked(collected)):
                found.setdefault(tasks[place // count], []).append(rollout)
        return [found[row].pop(0) for row in rows]

    async def _vines(self, rows: list[str], collector: Collector, output: Path, seed: int) -> list[Rollout]:
        """A tree for each rollout, whose trunk it is."""
        return _checked(await collector.vines([*map(json.loads, rows)], self._n, output, seed))


def _key(prompt: Sequence[Message]) -> str:
    """A prompt as text; Arrow adds empty fields to messages."""
    said = [{name: value for name, value in message.items() if value is not None} for message in prompt]
    return json.dumps(said, sort_keys=True)


def _checked(collected: Collected) -> list[Rollout]:
    if collected.failed:
        why = collected.error or "an agent waits for input, and nobody answers"
        wanted = len(collected.rollouts) + collected.failed
        raise EnvironmentFailed(f"{collected.failed} of {wanted} rollouts have no reward: {why}")
    return collected.rollouts


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Rollouts as TRL takes them, up to the last token that the model has written."""
    columns: dict[str, list[Any]] = {}
    for row, steps, _ in rollouts:
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
