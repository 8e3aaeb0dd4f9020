"""`stateroom train` and `stateroom export`: train a model on its episodes, or export them for a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from stateroom.cli.command import AsJSON, Output
from stateroom.cli.options import RunPath
from stateroom.cli.output import complain, console, counted, note, number, print_json, progress_bar, say, table
from stateroom.errors import needs
from stateroom.rollout import StoredRun
from stateroom.training import FORMATS, AdvantageMethod, Curve, To, TrainOptions, export_rows, write_table

BARS = "▁▂▃▄▅▆▇█"
CURVE_CHARACTERS = 40
"""The width of a curve, in characters."""

PLOTTED = ("reward", "held_out", "loss", "divergence", "clipped", "gradient")
"""Figures that are plotted as a curve."""


def train(options: TrainOptions, json_output: AsJSON = False) -> None:
    """Train a transformers model on an environment with reinforcement learning.

    Example: stateroom train counter --model models/small --steps 50 --held-out 100

    Imitate the reference policy first: stateroom train counter --model models/small --supervised 100

    Continue after an interruption: stateroom train counter --model models/small --output runs/a --resume
    """
    trainer = _trainer(options)
    if json_output:
        trainer.run(lambda curve: print_json(curve.steps[-1]))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            trainer.run(lambda curve: live.update(_picture(curve, trainer.end), refresh=True))
    else:
        trainer.run(lambda curve: say(_line(curve)))
    if not json_output:
        say(f"the model is in {trainer.checkpoint}")


def _trainer(options: TrainOptions) -> Any:
    with needs("training", "train"):
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - an extra

        from stateroom.training import Trainer  # noqa: PLC0415
    disable_progress_bar()  # otherwise each checkpoint shows one
    return Trainer(options)


def _line(curve: Curve) -> str:
    """The last step as a line of text."""
    last = curve.steps[-1]
    figures = (f"{name.replace('_', ' ')} {number(last[name])}" for name in PLOTTED if name in last)
    return f"step {int(last['step'])}: {', '.join(figures)}"


def _picture(curve: Curve, end: int) -> Table:
    """A table of all figures with their curves."""
    made = table(
        "figure", "first#", "last#", "curve!", title=f"step {min(int(curve.steps[-1]['step']) + 1, end)} of {end}"
    )
    for name in PLOTTED:
        if values := curve.column(name):
            made.add_row(name.replace("_", " "), number(values[0]), number(values[-1]), sparkline(values))
    return made


def sparkline(values: Sequence[float], width: int = CURVE_CHARACTERS) -> str:
    """A curve of at most this many characters; each one is the mean of some values."""
    parts = min(width, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    means = [fmean(values[start:stop]) for start, stop in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BARS[int((mean - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for mean in means)


ENDINGS: dict[To, str] = {
    "sft": "_sft.jsonl",
    "dpo": "_dpo.jsonl",
    "grpo": "_grpo.jsonl",
    "verl": "_verl.parquet",
    "jsonl": "_training.jsonl",
}
"""The default suffix of the file of each format."""

NOTHING: dict[To, str] = {
    "sft": "no episode has a high enough reward; lower the bound with --min-reward",
    "dpo": "no two continuations of one state have different rewards",
    "grpo": "the run has no finished episode",
    "verl": "the run has no tasks",
    "jsonl": "the run has no finished episode",
}
"""The reason why a format has no rows."""


async def export(
    run: RunPath,
    to: Annotated[
        To,
        typer.Option(
            help="sft: solved episodes as messages. dpo: pairs of continuations of one state. grpo: tokens with "
            "advantages. verl: tasks. jsonl: everything."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file, .jsonl or .parquet; by default beside the run.", show_default=False
        ),
    ] = None,
    how: Annotated[
        AdvantageMethod,
        typer.Option("--advantages", help="grpo and jsonl: the advantage estimator; vine and tree require trees."),
    ] = "grpo",
    min_reward: Annotated[
        float | None,
        typer.Option(
            help="sft: only episodes with at least this reward; by default the solved ones.", show_default=False
        ),
    ] = None,
) -> Output:
    """Export the episodes of a run in the format of a trainer. The exit code is 1 if there are none.

    Failed episodes and failed branches of trees are skipped and counted.

    Example: stateroom export rollouts/counter.jsonl --to sft

    Preference pairs from the states of trees: stateroom export rollouts/tree.jsonl --to dpo --output pairs.parquet

    Tokens with advantages: stateroom export rollouts/tree.jsonl --to grpo --advantages vine
    """
    stored = StoredRun.find(run)
    path = output or stored.files.rollouts.with_name(stored.files.rollouts.stem + ENDINGS[to])
    rows = export_rows(stored, to, how=how, min_reward=min_reward)
    with progress_bar(f"export to {path.name}") as bar:
        bar.start()
        written = await write_table(path, FORMATS[to].columns, rows, bar.advance)
    failed = sum(episode.failed for episode in stored.episodes())
    if failed:
        skipped = f"{counted(failed, 'failed episode or branch was', 'failed episodes or branches were')} skipped"
        note(f"{skipped}; see {stored.files.failures}")

    def show() -> None:
        if written:
            say(f"{counted(written, 'row', 'rows')} in {path}")
        else:
            complain(f"nothing to export: {NOTHING[to]}")

    file = str(path) if written else None
    return Output(lambda: {"rows": written, "failed": failed, "file": file}, show, 0 if written else 1)
