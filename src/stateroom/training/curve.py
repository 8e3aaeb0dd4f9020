"""Curves: the figures of each training step, in a file and for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateroom.errors import MissingPackage
from stateroom.jsonl import line_of, parse_object, read_lines

Figures = dict[str, float]
"""The figures of one step, with its number as `step`."""


class Curve:
    """The figures of each step, written at once as a line of a JSONL file."""

    def __init__(self, path: Path, start: int = 0, tensorboard: Path | None = None) -> None:
        """Steps from `start` on are removed from the file, because they will be repeated."""
        self._path = path
        self.steps: list[Figures] = [each for each in read_curve(path) if each["step"] < start]
        path.write_bytes(b"".join(map(line_of, self.steps)))
        self._writer = None if tensorboard is None else _summary_writer(tensorboard, start)

    def add(self, figures: Figures) -> None:
        """Add the figures of a step."""
        self.steps.append(figures)
        with self._path.open("ab") as file:
            file.write(line_of(figures))
        if self._writer is not None:
            for name, value in figures.items():
                if name != "step":
                    self._writer.add_scalar(name, value, int(figures["step"]))
            self._writer.flush()

    def column(self, name: str) -> list[float]:
        """The values of a figure for the steps that have it."""
        return [each[name] for each in self.steps if name in each]


def read_curve(path: Path) -> list[Figures]:
    """The figures of each step in a file; empty if the file does not exist."""
    return [parse_object(line) for _, line in read_lines(path)] if path.exists() else []


def _summary_writer(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - for this alone
    except ModuleNotFoundError as error:
        raise MissingPackage("TensorBoard", error.name, "tensorboard") from error
    return SummaryWriter(str(folder), purge_step=start)
