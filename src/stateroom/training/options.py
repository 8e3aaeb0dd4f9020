"""The options of a training: the learning settings and the episodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stateroom.agent import MAX_STEPS
from stateroom.options import Option, Unchecked, options
from stateroom.rollout import EnvironmentOptions, EnvironmentSpec
from stateroom.training.advantages import AdvantageMethod


@options
class LearningOptions:
    """The learning settings of a network."""

    learning_rate: Annotated[
        float,
        Field(
            description="The learning rate of reinforcement. The default is for models with millions of parameters. "
            "For billions, use 1e-4 with LoRA, and 1e-6 to 1e-5 without."
        ),
    ] = 3e-4
    supervised_rate: Annotated[
        float,
        Field(
            description="The learning rate of supervised steps. For billions of parameters, use 2e-4 with LoRA, and "
            "1e-5 without."
        ),
    ] = 1e-3
    warmup: Annotated[
        int, Field(ge=0, description="The number of updates in which the learning rate rises to its value.")
    ] = 10
    epochs: Annotated[int, Field(ge=1, description="Updates with the samples of each step.")] = 1
    clip: Annotated[
        float,
        Field(
            description="The clip range: the ratio of a token's current to its original probability counts only up to "
            "1 ± this."
        ),
    ] = 0.2
    kl: Annotated[float, Field(description="The weight of the divergence from the initial model.")] = 0.0
    lora: Annotated[
        int | None, Field(ge=1, description="The rank of a LoRA adapter; by default all weights are trained.")
    ] = None
    micro_batch: Annotated[
        int,
        Field(ge=1, description="Samples in memory at a time; gradients are accumulated, so the result is the same."),
    ] = 8
    temperature: Annotated[
        float, Field(ge=0.01, description="The sampling temperature, also used for log-probabilities.")
    ] = 1.0
    max_norm: Annotated[float, Field(description="The maximum norm of gradients; longer ones are scaled down.")] = 1.0


@options
class TrainOptions(LearningOptions, EnvironmentOptions):
    """The options of a training."""

    environment: EnvironmentSpec = field(kw_only=False)
    input: Annotated[
        Path | str | PathLike[str] | Iterable[Any] | None,
        Unchecked,
        Field(
            description="Tasks as JSONL, CSV or Parquet; by default the environment generates new ones at each step."
        ),
        Option("-i", may_change=True),
    ] = None
    model: Annotated[
        Path,
        Field(description="The model: a folder written by save_pretrained, or a GGUF file."),
        Option("-m", may_change=True),
    ]
    algorithm: Annotated[
        AdvantageMethod,
        Field(description="The algorithm that estimates advantages; vine and tree fork the states of episodes."),
    ] = "grpo"
    steps: Annotated[int, Field(ge=0, description="Reinforcement steps."), Option(may_change=True)] = 100
    token_budget: Annotated[
        int | None,
        Field(ge=1, description="Stop after the model has generated this many tokens."),
        Option(may_change=True),
    ] = None
    supervised: Annotated[
        int, Field(ge=0, description="Supervised steps at the beginning, in which the model imitates the teacher.")
    ] = 0
    teacher: Annotated[str, Field(description="The policy to imitate.")] = "reference"
    tasks_per_step: Annotated[int, Field(ge=1, description="Tasks per step.")] = 8
    group: Annotated[
        int, Field(ge=1, description="Episodes per task and step; for tree, the ends of its trees."), Option("-g")
    ] = 8
    continuations: Annotated[int, Field(ge=1, description="vine: continuations from each state.")] = 4
    max_steps: Annotated[int, Field(ge=1, description="The maximum number of answers per episode.")] = MAX_STEPS
    max_tokens: Annotated[int, Field(ge=1, description="The maximum number of tokens per answer.")] = 256
    held_out: Annotated[
        int,
        Field(ge=0, description="The number of tasks for evaluation only; with --input, the last ones."),
    ] = 0
    held_out_every: Annotated[
        int,
        Field(
            ge=1,
            description="Steps between evaluations on the held-out tasks, besides one at the start and one at the end.",
        ),
    ] = 10
    checkpoint_every: Annotated[int, Field(ge=1, description="Steps between checkpoints.")] = 10
    store: Annotated[
        str | None,
        Field(description="The URL of the session store; by default an SQLite file in the output folder."),
        Option(variable="STATEROOM_STORE", may_change=True),
    ] = None
    output: Annotated[
        Path | None,
        Field(description="The output folder; by default a new one in rollouts/."),
        Option("-o", may_change=True),
    ] = None
    tensorboard: Annotated[Path | None, Field(description="A folder for TensorBoard."), Option(may_change=True)] = None
    resume: Annotated[
        bool, Field(description="Continue from the last checkpoint in the output."), Option(stored=False)
    ] = False
    seed: Annotated[int, Field(description="The random seed of the training.")] = 0
