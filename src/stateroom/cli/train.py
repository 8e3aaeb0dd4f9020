"""`stateroom train`: a model that learns from its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from stateroom.cli.options import AsJSON, EnvArgs, RunStore, Seed, TaskFile, env_args_of
from stateroom.cli.output import console, number, print_json, table
from stateroom.environment import make_environment
from stateroom.errors import needs
from stateroom.rollout import find_tasks, new_path
from stateroom.training import Curve, How, Learning, Training

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Characters of a curve."""

SHOWN = ("reward", "held_out", "loss", "divergence", "clipped", "gradient")
"""Figures with a curve."""


def train(
    env: Annotated[str, typer.Argument(help="A registered environment, module:Class or path.py:Class.")],
    model: Annotated[Path, typer.Option("--model", "-m", help="A folder that save_pretrained wrote, or a GGUF file.")],
    env_arg: EnvArgs = None,
    input_file: TaskFile = None,
    algorithm: Annotated[
        How, typer.Option(help="How the advantage of an answer is estimated; vine and tree fork its states.")
    ] = Training.algorithm,
    steps: Annotated[int, typer.Option(min=0, help="Steps of reinforcement.")] = Training.steps,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="End when the model has generated this many tokens.")
    ] = Training.tokens,
    supervised: Annotated[
        int, typer.Option(min=0, help="Steps before these, in which the model imitates the teacher.")
    ] = Training.supervised,
    teacher: Annotated[str, typer.Option(help="The policy to imitate.")] = Training.teacher,
    tasks_per_step: Annotated[int, typer.Option(min=1, help="Tasks in a step.")] = Training.tasks_per_step,
    group: Annotated[
        int, typer.Option("--group", "-g", min=1, help="Episodes of each task in a step.")
    ] = Training.group,
    continuations: Annotated[
        int, typer.Option(min=1, help="vine: continuations from each state.")
    ] = Training.continuations,
    learning_rate: Annotated[
        float,
        typer.Option(
            help="Of reinforcement. The default is for models of some million parameters. For billions, take 1e-4 with "
            "--lora, and 1e-6 to 1e-5 without."
        ),
    ] = Learning.learning_rate,
    supervised_rate: Annotated[
        float,
        typer.Option(help="Of supervised steps. For billions of parameters, 2e-4 with --lora, and 1e-5 without."),
    ] = Learning.supervised_rate,
    epochs: Annotated[int, typer.Option(min=1, help="Updates with the samples of a step.")] = Learning.epochs,
    clip: Annotated[float, typer.Option(help="How far a token's probability ratio may pull.")] = Learning.clip,
    kl: Annotated[float, typer.Option(help="The weight of the divergence from the first model.")] = Learning.kl,
    lora: Annotated[
        int | None, typer.Option(min=1, help="The rank of a LoRA adapter; by default all weights learn.")
    ] = Learning.lora,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples in memory at a time.")] = Learning.micro_batch,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the sampling.")] = Learning.temperature,
    max_steps: Annotated[int, typer.Option(min=1, help="Answers in an episode.")] = Training.max_steps,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens in an answer.")] = Training.max_tokens,
    held_out: Annotated[
        int, typer.Option(min=0, help="Tasks that the model is measured by, and not trained on.")
    ] = Training.held_out,
    held_out_every: Annotated[
        int, typer.Option(min=1, help="Steps between two measurements.")
    ] = Training.held_out_every,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Steps between two checkpoints.")
    ] = Training.checkpoint_every,
    store: RunStore = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder of the training; by default below rollouts/.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint of --output.")] = False,
    seed: Seed = 0,
    json_output: AsJSON = False,
) -> None:
    """Train a model of the transformers library on an environment, by reinforcement from its own episodes.

    Example: stateroom train counter --model models/small --steps 50 --held-out 100

    Imitate the reference policy first: stateroom train counter --model models/small --supervised 100

    Continue after an interruption: stateroom train counter --model models/small --output runs/a --resume
    """
    trainer = _trainer(
        Training(
            env,
            model,
            output or new_path(f"{env}-training"),
            algorithm,
            env_args=env_args_of(env_arg),
            tasks=None if input_file is None else find_tasks(make_environment(env, env_args_of(env_arg)), input_file),
            store=store,
            steps=steps,
            tokens=tokens,
            supervised=supervised,
            teacher=teacher,
            tasks_per_step=tasks_per_step,
            group=group,
            continuations=continuations,
            learning=Learning(
                learning_rate=learning_rate,
                supervised_rate=supervised_rate,
                epochs=epochs,
                clip=clip,
                kl=kl,
                lora=lora,
                micro_batch=micro_batch,
                temperature=temperature,
            ),
            max_steps=max_steps,
            max_tokens=max_tokens,
            held_out=held_out,
            held_out_every=held_out_every,
            checkpoint_every=checkpoint_every,
            seed=seed,
            resume=resume,
            tensorboard=tensorboard,
        )
    )
    if json_output:
        trainer.run(lambda curve: print_json(curve.steps[-1]))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            trainer.run(lambda curve: live.update(_picture(curve, trainer.end), refresh=True))
    else:
        trainer.run(lambda curve: console.print(_line(curve), soft_wrap=True))
    if not json_output:
        console.print(f"the model is in {trainer.checkpoint}", soft_wrap=True)


def _trainer(training: Training) -> Any:
    with needs("training", "train"):
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - an extra

        from stateroom.training import Trainer  # noqa: PLC0415
    disable_progress_bar()  # of each checkpoint
    return Trainer(training)


def _line(curve: Curve) -> str:
    """The last step in a line."""
    last = curve.steps[-1]
    told = [f"{name.replace('_', ' ')} {number(last[name])}" for name in SHOWN if name in last]
    return f"step {int(last['step'])}: {', '.join(told)}"


def _picture(curve: Curve, end: int) -> Table:
    """All figures, each with its curve."""
    made = table(
        "figure", "first#", "last#", "curve!", title=f"step {min(int(curve.steps[-1]['step']) + 1, end)} of {end}"
    )
    for name in SHOWN:
        if values := curve.column(name):
            made.add_row(name.replace("_", " "), number(values[0]), number(values[-1]), sparkline(values))
    return made


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """A curve of at most this many characters, each the mean of some values."""
    parts = min(width, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    means = [fmean(values[start:stop]) for start, stop in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BARS[int((mean - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for mean in means)
