"""The options of a training: how a network learns, from which episodes."""

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
    """How a network learns."""

    learning_rate: Annotated[
        float,
        Field(
            description="Of reinforcement. The default is for models of some million parameters. For billions, take "
            "1e-4 with LoRA, and 1e-6 to 1e-5 without."
        ),
    ] = 3e-4
    supervised_rate: Annotated[
        float,
        Field(description="Of supervised steps. For billions of parameters, 2e-4 with LoRA, and 1e-5 without."),
    ] = 1e-3
    warmup: Annotated[int, Field(ge=0, description="Updates in which the learning rate rises to its value.")] = 10
    epochs: Annotated[int, Field(ge=1, description="Updates with the samples of a step.")] = 1
    clip: Annotated[
        float,
        Field(
            description="How far the ratio of a token's probabilities, now and when it was written, may pull: up to "
            "1 ± this."
        ),
    ] = 0.2
    kl: Annotated[float, Field(description="The weight of the divergence from the model as it was at the start.")] = 0.0
    lora: Annotated[
        int | None, Field(ge=1, description="The rank of a LoRA adapter; by default all weights learn.")
    ] = None
    micro_batch: Annotated[
        int,
        Field(ge=1, description="Samples in memory at a time: gradients are summed up, so the result is the same."),
    ] = 8
    temperature: Annotated[float, Field(ge=0.01, description="Of the sampling, and so of the log-probabilities.")] = 1.0
    max_norm: Annotated[float, Field(description="Longer gradients are scaled down to this.")] = 1.0


@options
class TrainOptions(LearningOptions, EnvironmentOptions):
    """The options of a training."""

    environment: EnvironmentSpec = field(kw_only=False)
    input: Annotated[
        Path | str | PathLike[str] | Iterable[Any] | None,
        Unchecked,
        Field(
            description="Tasks as JSONL, CSV or Parquet; by default new ones at each step, by the environment's "
            "generator."
        ),
        Option("-i", may_change=True),
    ] = None
    model: Annotated[
        Path, Field(description="A folder that save_pretrained wrote, or a GGUF file."), Option("-m", may_change=True)
    ]
    algorithm: Annotated[
        AdvantageMethod,
        Field(description="How the advantage of an answer is estimated; vine and tree fork its states."),
    ] = "grpo"
    steps: Annotated[int, Field(ge=0, description="Steps of reinforcement."), Option(may_change=True)] = 100
    token_budget: Annotated[
        int | None,
        Field(ge=1, description="End when the model has generated this many tokens."),
        Option(may_change=True),
    ] = None
    supervised: Annotated[
        int, Field(ge=0, description="Steps before these, in which the model imitates the teacher.")
    ] = 0
    teacher: Annotated[str, Field(description="The policy to imitate.")] = "reference"
    tasks_per_step: Annotated[int, Field(ge=1, description="Tasks in a step.")] = 8
    group: Annotated[
        int, Field(ge=1, description="Episodes of each task in a step; tree: the ends of its trees."), Option("-g")
    ] = 8
    continuations: Annotated[int, Field(ge=1, description="vine: continuations from each state.")] = 4
    max_steps: Annotated[int, Field(ge=1, description="Answers in an episode.")] = MAX_STEPS
    max_tokens: Annotated[int, Field(ge=1, description="Tokens in an answer.")] = 256
    held_out: Annotated[
        int,
        Field(ge=0, description="Tasks that the model is measured by, and not trained on; of given tasks, the last."),
    ] = 0
    held_out_every: Annotated[
        int,
        Field(
            ge=1,
            description="Steps between two measurements; there is one before the first step too, and one at the end.",
        ),
    ] = 10
    checkpoint_every: Annotated[int, Field(ge=1, description="Steps between two checkpoints.")] = 10
    store: Annotated[
        str | None,
        Field(description="The store of the sessions, as a URL; by default an SQLite file in the folder."),
        Option(variable="STATEROOM_STORE", may_change=True),
    ] = None
    output: Annotated[
        Path | None,
        Field(description="The folder of the training; by default below rollouts/."),
        Option("-o", may_change=True),
    ] = None
    tensorboard: Annotated[Path | None, Field(description="A folder for TensorBoard."), Option(may_change=True)] = None
    resume: Annotated[
        bool, Field(description="Continue from the last checkpoint in the output."), Option(stored=False)
    ] = False
    seed: Annotated[int, Field(description="The random seed of the training.")] = 0
