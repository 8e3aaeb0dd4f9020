"""`stateroom train`: a model that learns from its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.live import Live
from rich.table import Table

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, number, print_json, table
from stateroom.errors import needs
from stateroom.training import Curve, TrainOptions

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Characters of a curve."""

PLOTTED = ("reward", "held_out", "loss", "divergence", "clipped", "gradient")
"""Figures with a curve."""


def train(options: TrainOptions, json_output: AsJSON = False) -> None:
    """Train a model of the transformers library on an environment, by reinforcement from its own episodes.

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
        trainer.run(lambda curve: console.print(_line(curve), soft_wrap=True))
    if not json_output:
        console.print(f"the model is in {trainer.checkpoint}", soft_wrap=True)


def _trainer(options: TrainOptions) -> Any:
    with needs("training", "train"):
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - an extra

        from stateroom.training import Trainer  # noqa: PLC0415
    disable_progress_bar()  # of each checkpoint
    return Trainer(options)


def _line(curve: Curve) -> str:
    """The last step in a line."""
    last = curve.steps[-1]
    told = [f"{name.replace('_', ' ')} {number(last[name])}" for name in PLOTTED if name in last]
    return f"step {int(last['step'])}: {', '.join(told)}"


def _picture(curve: Curve, end: int) -> Table:
    """All figures, each with its curve."""
    made = table(
        "figure", "first#", "last#", "curve!", title=f"step {min(int(curve.steps[-1]['step']) + 1, end)} of {end}"
    )
    for name in PLOTTED:
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
