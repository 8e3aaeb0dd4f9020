"""Plans: what is trained, on which tasks, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateroom.agent import MAX_STEPS
from stateroom.environment import Environment
from stateroom.training.advantages import How

Row = dict[str, Any]


@dataclass(frozen=True)
class Learning:
    """How a network learns."""

    learning_rate: float = 3e-4
    """Of reinforcement; like the next one, for models of some million parameters."""
    supervised_rate: float = 1e-3
    """The learning rate of supervised steps."""
    warmup: int = 10
    """Updates in which the rate rises to that."""
    epochs: int = 1
    """Updates with the samples of a step."""
    clip: float = 0.2
    """How far the ratio of a token's probabilities, now and when it was written, may pull: up to 1 ± this."""
    kl: float = 0.0
    """The weight of the divergence from the model as it was at the start."""
    lora: int | None = None
    """The rank of a LoRA adapter; None: all weights learn."""
    micro_batch: int = 8
    """Samples that are in memory at a time: gradients are summed up, so the result is the same."""
    temperature: float = 1.0
    """Of the sampling, and so of the log-probabilities."""
    max_norm: float = 1.0
    """Longer gradients are scaled down to this."""


@dataclass(frozen=True)
class Training:
    """What is trained, on which tasks, and how."""

    environment: str | type[Environment[Any, Any]] | Environment[Any, Any]
    model: Path
    """A folder that `save_pretrained` wrote, or a GGUF file."""
    output: Path
    """The folder of checkpoints, rollouts and curves."""
    algorithm: How = "grpo"
    env_args: Mapping[str, Any] = field(default_factory=dict)
    tasks: list[Row] | None = None
    """The tasks; None: new ones at each step, by the environment's generator."""
    store: str | None = None
    """The URL of the store of the sessions; None: a SQLite file in the folder."""
    steps: int = 100
    """Steps of reinforcement."""
    tokens: int | None = None
    """Tokens that the model may generate in them; when there are as many, the training ends."""
    supervised: int = 0
    """Steps before these, in which the model imitates the teacher."""
    teacher: str = "reference"
    """The policy to imitate, as `--model` of a run names it."""
    tasks_per_step: int = 8
    group: int = 8
    """Episodes of each task in a step; `tree`: the ends of its trees."""
    continuations: int = 4
    """`vine`: continuations from each state."""
    learning: Learning = field(default_factory=Learning)
    max_steps: int = MAX_STEPS
    """Answers in an episode."""
    max_tokens: int = 256
    """Tokens in an answer."""
    held_out: int = 0
    """Tasks that the model is not trained on, to measure it by; of given tasks, the last."""
    held_out_every: int = 10
    """Steps between two measurements; there is one before the first step too, and one at the end."""
    checkpoint_every: int = 10
    seed: int = 0
    resume: bool = False
    """Continue from the last checkpoint in the folder."""
    tensorboard: Path | None = None
