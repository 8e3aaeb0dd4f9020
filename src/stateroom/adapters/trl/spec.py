"""`spec`: the arguments of GRPOTrainer for an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from datasets import Dataset

from stateroom.adapters.trl.environment import (
    PooledEnvironment,
    Source,
    instance_class,
    open_environment,
    reads_response,
    verified_reward,
)
from stateroom.adapters.trl.trainer import Method, RolloutFunction
from stateroom.environment import Environment, make_environment
from stateroom.errors import BadTask
from stateroom.model import Message, input_items, template_messages
from stateroom.rollout import find_tasks, given_row, missing_prompts
from stateroom.state import to_json

NOTHING: Mapping[str, Any] = {}


def spec(
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any],
    *,
    env_args: Mapping[str, Any] = NOTHING,
    input: str | PathLike[str] | Iterable[Any] | None = None,
    store: str = "memory://",
    limit: int | None = None,
    seed: int = 0,
) -> Spec:
    """Create the arguments of GRPOTrainer for an environment.

    `environment`, `env_args` and `input` are as in `stateroom.run`: by default the tasks are the environment's
    examples. `limit` takes only the first N. `store` is the URL of the session store; in memory, a session is deleted
    when its instance begins the next episode. `seed` determines the random seeds of the episodes.
    """
    made = make_environment(environment, env_args)
    tasks = find_tasks(made, input)[:limit]
    if problem := missing_prompts(made, tasks):
        raise BadTask(problem)
    rows = [{"prompt": _prompt(task), "row": to_json(given_row(task)).decode()} for task in tasks]
    return Spec(EnvironmentFactory(Source(environment, dict(env_args), store, seed)), Dataset.from_list(rows))


@dataclass(frozen=True)
class EnvironmentFactory:
    """Creates the instances of TRL's pool. It is picklable, and opens its store on first use in a process."""

    source: Source

    def __call__(self) -> PooledEnvironment:
        opened = open_environment(self.source)
        return instance_class(opened.environment)(opened)


@dataclass(frozen=True)
class Spec:
    """The arguments of GRPOTrainer for an environment: `train_dataset`, `environment_factory` and `reward_funcs`."""

    environment_factory: EnvironmentFactory
    train_dataset: Any = field(repr=False)
    """The tasks: `prompt` has the messages, and `row` the whole row as JSON."""

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """The reward functions for a verifier that reads the response; empty for others, which use `get_reward`."""
        return [verified_reward] if reads_response(self.environment_factory.source.make_environment()) else []

    def rollout_func(self, how: Method = "grpo", n: int = 4) -> RolloutFunction:
        """A function that collects rollouts with Stateroom's agent loop, for `StateroomTrainer(rollout_func=...)`.

        With `grpo` and `rloo`, the rollouts of a prompt are forks of one session, and their rewards are compared. With
        `vine`, each rollout is the trunk of a tree: `n` continuations from each of its states estimate its value.
        Raises `BadTask` if two different tasks have the same prompt, because the trainer identifies tasks by prompt.
        """
        return RolloutFunction(self.environment_factory.source, self.train_dataset, how, n)


def _prompt(row: Mapping[str, Any]) -> list[Message]:
    """The messages that a row's episode starts with."""
    asked = row.get("responses_create_params", {})
    return template_messages(input_items(asked.get("input")), asked.get("instructions"))
