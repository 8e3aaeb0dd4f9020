"""The training loop: a model collects episodes and learns from them, step by step.

A step collects episodes in sessions with the model's exact tokens, estimates the advantage of each answer, and makes
answers with an advantage more likely. Optional supervised steps come first, in which the model imitates a policy.

| `algorithm` | episodes of a task | advantage of an answer |
|---|---|---|
| `grpo`, `rloo`, `gigpo` | forks of one session | from the reward of its episode relative to others of the task |
| `vine` | each with continuations from all its states | from the values of the states before and after it |
| `tree` | ends of trees | from the rewards of the ends below it |

A step depends only on the seed, its number and the weights. So a killed training continues from its last checkpoint
with the same figures, on a CPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import fmean
from time import perf_counter
from typing import Any
from urllib.parse import quote

import torch
from pydantic_core import to_jsonable_python

from stateroom.errors import EnvironmentFailed, InvalidOption
from stateroom.model import (
    NO_ROW,
    TOKEN_LISTS,
    Answer,
    Model,
    ModelSource,
    Request,
    TransformersModel,
    device_name,
    load_network,
    open_model,
)
from stateroom.options import stored_options
from stateroom.rollout import find_tasks, generate_tasks, new_path
from stateroom.session import BackgroundLoop
from stateroom.training.curve import Curve, Figures
from stateroom.training.learner import Learner
from stateroom.training.options import TrainOptions
from stateroom.training.rollouts import ENDS_PER_TREE, Collected, Collector, Rollout, samples


class Trainer:
    """Runs a training. It blocks; sessions run on a separate event loop."""

    def __init__(self, training: TrainOptions) -> None:
        self.training = training
        self._environment = training.make_environment()
        self._tasks = None if training.input is None else find_tasks(self._environment, training.input)
        self._folder = training.output or new_path(f"{self._environment.name}-training")
        if training.algorithm == "tree" and training.group % ENDS_PER_TREE:
            raise InvalidOption(
                "group", f"must be a multiple of {ENDS_PER_TREE}, the ends of each tree, not {training.group}"
            )
        last, device = self._prepare(), device_name()
        network, tokenizer = load_network(training.model, device, torch.float32 if device == "cpu" else torch.bfloat16)
        self._tokenizer = tokenizer
        self._learner = Learner(network, training, training.seed, str(training.model.absolute()))
        self.start: int = 0 if last is None else self._learner.load(last)["step"]
        """The first remaining step."""
        self.end = training.supervised + training.steps
        """The step after the last."""
        self.curve = Curve(self._folder / "curve.jsonl", self.start, training.tensorboard)
        self._model = TransformersModel(
            self._learner.network,
            tokenizer,
            f"transformers:{training.model}",
            most=4 * training.tasks_per_step * training.group,
            length=network.config.max_position_embeddings,
            compiles=device != "cpu",
        )
        store = training.store or f"sqlite:///{quote(str(self._folder / 'sessions.db'))}"
        settings = {"temperature": training.temperature, "max_output_tokens": training.max_tokens}
        self._collector = Collector(
            training.environment, training.env_args, store, self._model, training.max_steps, settings
        )

    def run(self, on_step: Callable[[Curve], None] = lambda curve: None) -> Curve:
        """Run all remaining steps; `on_step` is called after each."""
        step, self._loop = self.start, BackgroundLoop()
        try:
            while not self._is_over(step):
                self.curve.add(self._step(step))
                step += 1
                if step % self.training.checkpoint_every == 0 or self._is_over(step):
                    self._save(step)
                on_step(self.curve)
            if self.training.held_out:
                self.curve.add({"step": step, "held_out": self._held_out(step)})
                on_step(self.curve)
        finally:
            self._loop.close()
        return self.curve

    def _is_over(self, step: int) -> bool:
        most = self.training.token_budget
        return step >= self.end or (most is not None and sum(self.curve.column("tokens")) >= most)

    def _step(self, step: int) -> Figures:
        training, began = self.training, perf_counter()
        figures: Figures = {"step": step}
        if training.held_out and (step % training.held_out_every == 0 or step == training.supervised):
            figures["held_out"] = self._held_out(step)
        if step < training.supervised:
            figures |= self._learner.imitate(samples(self._taught(step)))
        else:
            collected = self._collected(step)
            figures |= {"reward": fmean(collected.rewards), "tokens": collected.written, "failed": collected.failed}
            figures |= self._learner.learn(samples(collected.rollouts))
        return {**figures, "seconds": perf_counter() - began}

    def _collected(self, step: int) -> Collected:
        """The episodes of a step, played by the model."""
        training, tasks, output, seed = self.training, self._tasks_of(step), self._rollouts(step), self._seed(step)
        match training.algorithm:
            case "vine":
                repeated = [task for task in tasks for _ in range(training.group)]
                work = self._collector.vines(repeated, training.continuations, output, seed)
            case "tree":
                work = self._collector.trees(tasks, training.group // ENDS_PER_TREE, output, seed)
            case how:
                work = self._collector.groups(tasks, training.group, how, output, seed)
        collected = self._model.serve(self._loop, work)
        if not collected.rollouts:
            raise EnvironmentFailed(f"all {collected.failed} episodes of step {step} failed: {collected.error}")
        return collected

    def _taught(self, step: int) -> list[Rollout]:
        """The episodes of a step, played by the teacher."""
        teacher = Teacher(open_model(self.training.teacher, self._environment.policies), self._model)
        tasks, output = self._tasks_of(step), self._rollouts(step)
        taught = self._loop.run(self._collector.episodes(tasks, teacher, output, self._seed(step)))
        return [Rollout(row, [1.0] * len(row["response"]["output"])) for row in taught]

    def _held_out(self, step: int) -> float:
        """The mean reward on held-out tasks, without failed episodes."""
        tasks = self._held_out_tasks
        output = self._rollouts(step, "held-out")
        work = self._collector.episodes(tasks, self._model, output, self.training.seed)
        played = self._model.serve(self._loop, work)
        return sum(float(row["reward"]) for row in played) / len(tasks)

    def _tasks_of(self, step: int) -> list[dict[str, Any]]:
        """The tasks of a step."""
        number, given = self.training.tasks_per_step, self._tasks
        if given is None:
            return generate_tasks(type(self._environment), number, self._seed(step))
        usable = given[: len(given) - self.training.held_out]
        return Random(self._seed(step)).choices(usable, k=number)

    @cached_property
    def _held_out_tasks(self) -> Sequence[dict[str, Any]]:
        number, given = self.training.held_out, self._tasks
        if given is not None:
            return given[-number:]
        return generate_tasks(type(self._environment), number, self._seed(-1))

    def _seed(self, step: int) -> int:
        return self.training.seed * 1_000_003 + step + 1

    def _rollouts(self, step: int, kind: str = "step") -> Path:
        return self._folder / "rollouts" / f"{kind}-{step:05}.jsonl"

    # The folder.

    @property
    def checkpoint(self) -> Path | None:
        """The last checkpoint: a model that you can open as `transformers:PATH`."""
        return max((self._folder / "checkpoints").glob("[0-9]" * 5), default=None)

    def _prepare(self) -> Path | None:
        """Create the folder, or check that its training can continue; returns the last checkpoint."""
        description, wanted = self._folder / "training.json", self._described()
        if description.exists():
            if not self.training.resume:
                raise InvalidOption(
                    "output", f"{self._folder} already has a training; resume it, or choose another folder"
                )
            known = json.loads(description.read_text())
            for name, value in wanted.items():
                if value != known.get(name):
                    raise InvalidOption(
                        name, f"the training in {self._folder} uses {known.get(name)}; resume it with the same value"
                    )
        (self._folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        description.write_text(json.dumps(wanted, indent=2))
        return self.checkpoint

    def _described(self) -> dict[str, Any]:
        """The settings that determine the steps of a training; a resumed training may have more steps."""
        given = {each.name: value for each, value in stored_options(self.training) if not each.option.may_change}
        own = {"environment": self._environment.name, "model": self.training.model.absolute()}
        return to_jsonable_python({**given, **own}, fallback=repr)  # type: ignore[no-any-return]

    def _save(self, step: int) -> None:
        """Write a checkpoint, replacing the previous one."""
        before = self.checkpoint
        folder = self._folder / "checkpoints" / f"{step:05}"
        shutil.rmtree(folder.with_name(folder.name + ".new"), ignore_errors=True)
        self._learner.save(folder, self._tokenizer, {"step": step})
        if before is not None:
            shutil.rmtree(before)


class Teacher(ModelSource):
    """Gives each episode a policy whose answers have the tokens of a student."""

    def __init__(self, policies: ModelSource, student: TransformersModel) -> None:
        super().__init__(policies.name, policies.for_episode, policies.close)
        self._policies = policies
        self._student = student

    def check_task(self, row: Mapping[str, Any]) -> None:
        self._policies.check_task(row)

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        return _Taught(self._policies.for_episode(seed, row), self._student)


class _Taught(Model):
    def __init__(self, policy: Model, student: TransformersModel) -> None:
        self.name = policy.name
        self._policy = policy
        self._student = student

    async def answer(self, request: Request) -> Answer:
        answer = await self._policy.answer(request)
        written = self._student.render_answer(answer.items)
        tokens = (self._student.prompt_of(request), written, [0.0] * len(written))
        return Answer([*answer.items[:-1], answer.items[-1] | dict(zip(TOKEN_LISTS, tokens, strict=True))])
