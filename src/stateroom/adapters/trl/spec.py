"""`spec`: what GRPOTrainer takes of an environment."""

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
    """What GRPOTrainer takes of an environment.

    `environment`, `env_args` and `input` are as in `stateroom.run`: by default the tasks are the environment's
    examples, and `limit` takes only the first N. `store` is the URL of the store of the sessions; in memory a session
    is deleted when its instance begins the next episode. `seed` decides the random seeds of the episodes.
    """
    made = make_environment(environment, env_args)
    tasks = find_tasks(made, input)[:limit]
    if problem := missing_prompts(made, tasks):
        raise BadTask(problem)
    rows = [{"prompt": _prompt(task), "row": to_json(given_row(task)).decode()} for task in tasks]
    return Spec(EnvironmentFactory(Source(environment, dict(env_args), store, seed)), Dataset.from_list(rows))


@dataclass(frozen=True)
class EnvironmentFactory:
    """Makes the instances of TRL's pool. It pickles, and opens its store when a process first uses it."""

    source: Source

    def __call__(self) -> PooledEnvironment:
        opened = open_environment(self.source)
        return instance_class(opened.environment)(opened)


@dataclass(frozen=True)
class Spec:
    """What GRPOTrainer takes of an environment: hand it `train_dataset`, `environment_factory` and `reward_funcs`."""

    environment_factory: EnvironmentFactory
    train_dataset: Any = field(repr=False)
    """The tasks: `prompt` has the messages, and `row` the whole row as JSON."""

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """The reward of verifiers that read the response; others give theirs with `get_reward`, and this is empty."""
        return [verified_reward] if reads_response(self.environment_factory.source.make_environment()) else []

    def rollout_func(self, how: Method = "grpo", n: int = 4) -> RolloutFunction:
        """Collects rollouts with our own agent loop; hand it to `StateroomTrainer(rollout_func=...)`.

        With `grpo` and `rloo` the rollouts of a prompt are forks of one session, and their rewards are compared. With
        `vine` each rollout is the trunk of a tree: `n` continuations from each of its states say what that was worth.
        Raises `BadTask` if two different tasks have the same prompt, by which the trainer's prompts are told apart.
        """
        return RolloutFunction(self.environment_factory.source, self.train_dataset, how, n)


def _prompt(row: Mapping[str, Any]) -> list[Message]:
    """The messages that a row's episode starts with."""
    asked = row.get("responses_create_params", {})
    return template_messages(input_items(asked.get("input")), asked.get("instructions"))
