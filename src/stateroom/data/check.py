"""Checks of rows: whether each is a task of an environment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import BadTask
from stateroom.rollout import SourceRow, checked_row, has_prompt


@dataclass
class DataReport:
    """What was found in some rows."""

    rows: int = 0
    problems: int = 0
    """Rows that cannot be used."""
    first: list[str] = field(default_factory=list)
    """The first of these problems, each with its place."""
    without_prompt: int = 0
    """Rows that can be used, and ask nothing of the model."""

    def add(self, problem: str, most: int) -> None:
        """Count a problem; of the first `most` keep what they are."""
        self.problems += 1
        if self.problems <= most:
            self.first.append(problem)


def check_rows(rows: Iterable[SourceRow], environment: Environment[Any, Any], most: int = 10) -> DataReport:
    """Check rows against the environment's type of tasks, one by one; the report has the first `most` problems."""
    report = DataReport()
    for each in rows:
        report.rows += 1
        try:
            row = checked_row(each.data, environment)
        except BadTask as error:
            report.add(f"{each.where}: {error}", most)
        else:
            report.without_prompt += not has_prompt(row)
    return report
