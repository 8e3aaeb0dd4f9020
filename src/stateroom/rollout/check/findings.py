"""Findings: the results of the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

SCHEMA = "schema"
TASKS = "tasks"
SEED = "seed"
DETERMINISM = "determinism"
ISOLATION = "isolation"
HIDDEN_STATE = "hidden state"
READ_BACK = "read back"
REFERENCE = "reference"
IDLE = "idle"
SHORTCUT = "shortcut"
VERIFIER = "verifier"
TOOLS = "tools"
COST = "cost"

PLAYED = (SEED, DETERMINISM, ISOLATION, HIDDEN_STATE, READ_BACK, REFERENCE, IDLE, SHORTCUT, VERIFIER, TOOLS, COST)
"""The checks that play episodes, in the order of a report; `schema` and `tasks` come before them."""

CheckResult = Literal["ok", "warning", "problem", "skipped"]

Outcome = Literal["solved", "unsolved", "waiting", "failed", "not_played"]

MAX_LISTED = 3
"""The most names or episodes that are listed individually."""


class Fault(NamedTuple):
    """A finding: what is wrong, where, and what to do about it."""

    text: str
    serious: bool = True
    """Whether it is a problem rather than a warning."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    result: CheckResult
    found: list[str]
    problems: int = 0
    """The number of problems at the start of `found`; the others are warnings."""


class TaskOutcome(NamedTuple):
    """The outcome of the reference policy, or of the gold actions of a task."""

    task: int
    """The task's index in the input."""
    outcome: Outcome
    reward: float | None = None
    why: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The results of all checks of an environment."""

    environment: str
    findings: list[Finding] = field(default_factory=list)
    tasks: int = 0
    played: int = 0
    """The number of tasks that were played."""
    outcomes: list[TaskOutcome] = field(default_factory=list)
    """The outcomes of all tasks, in the order of the input."""

    @property
    def problems(self) -> list[str]:
        """The problems, each with the name of its check."""
        return [f"{each.check}: {line}" for each in self.findings for line in each.found[: each.problems]]

    @classmethod
    def undefined(cls, environment: str, why: str) -> Self:
        """The report for an environment whose class is invalid."""
        others = [skipped(check, "the class is invalid") for check in (TASKS, *PLAYED)]
        return cls(environment, [finding(SCHEMA, [Fault(why)], ""), *others])


def finding(check: str, faults: Sequence[Fault], otherwise: str) -> Finding:
    """The result of a check; `otherwise` is its text without faults."""
    if not faults:
        return Finding(check, "ok", [otherwise])
    ordered = sorted(faults, key=lambda fault: not fault.serious)
    problems = sum(fault.serious for fault in faults)
    return Finding(check, "problem" if problems else "warning", [fault.text for fault in ordered], problems)


def skipped(check: str, why: str) -> Finding:
    """The result of a check that could not run."""
    return Finding(check, "skipped", [why])


def listed(names: Sequence[object], most: int = MAX_LISTED) -> str:
    """The first names, separated by commas, and the number of others."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 task`, `2 tasks`."""
    return f"{number} {noun if number == 1 else f'{noun}s'}"
