"""The options that `run`, `branch` and other commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.cli.command import pairs
from stateroom.cli.output import errors
from stateroom.environment import Environment, TypedText
from stateroom.rollout import missing_prompts

EnvOption = Annotated[str, typer.Option("--env", "-e", help="A registered name, module:Class or path.py:Class.")]
OnlyEnv = Annotated[str | None, typer.Option("--env", "-e", help="Only sessions of the environment with this name.")]
EnvArgs = Annotated[
    list[str] | None,
    typer.Option("--env-arg", help="An argument of the environment's constructor, as NAME=VALUE. Repeatable."),
]
TaskFile = Annotated[
    Path | None,
    typer.Option("--input", "-i", help="Tasks as JSONL, CSV or Parquet; by default the environment's examples."),
]
RolloutTasks = Annotated[
    Path | None,
    typer.Option(
        "--input",
        "-i",
        help="Tasks as JSONL, for rollouts that lack the fields of their tasks, as NeMo Gym's may; found by prompt.",
        show_default=False,
    ),
]
KeyVariable = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        help="The environment variable with the key of the model's server; by default OPENAI_API_KEY for OpenAI, and "
        "API_KEY_ with the host for others, such as API_KEY_MODELS_EXAMPLE.",
    ),
]
STORE_VARIABLE = "STATEROOM_STORE"
"""The environment variable with the store's URL, for a command without `--store`."""

StoreURL = Annotated[
    str, typer.Option("--store", envvar=STORE_VARIABLE, help="The store's URL, such as sqlite:///rooms.db.")
]
RunStore = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="The store of the sessions, as a URL; by default an SQLite file beside the rollouts. With --server, or "
        "for a stateless environment: the store of the model's answers for --resume, by default none.",
    ),
]
ExistingStore = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="The store of the sessions, as a URL; by default the SQLite file beside the rollouts.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run at --output.")]
Seed = Annotated[int, typer.Option(help="The random seed of the run.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def warn_of_missing_prompts(environment: Environment[Any, Any], tasks: Iterable[dict[str, Any]]) -> None:
    """Print a warning if some tasks ask nothing of the model."""
    if told := missing_prompts(environment, tasks):
        errors.print(f"warning: {told}", style="yellow", soft_wrap=True)


def env_args_of(given: list[str] | None) -> dict[str, TypedText]:
    """Constructor arguments that were given as NAME=VALUE; the environment's annotations say what a value is."""
    return {name: TypedText(value) for name, value in pairs(given, "--env-arg", "difficulty=hard")}
