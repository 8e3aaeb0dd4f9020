"""What a check came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Result = Literal["ok", "warning", "problem", "skipped"]

SHOWN = 3
"""So many faults of a kind are told one by one."""


class Fault(NamedTuple):
    """Something that a check found: what, where, and what to do about it."""

    text: str
    serious: bool = True
    """Whether it is a problem, and not only worth a look."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    result: Result
    found: list[str]
    problems: int = 0
    """How many of these, from the first on, are problems, and not only worth a look."""


def finding(check: str, faults: Sequence[Fault], otherwise: str) -> Finding:
    """What a check that ran came to; `otherwise` is what it says if nothing is wrong."""
    if not faults:
        return Finding(check, "ok", [otherwise])
    ordered = sorted(faults, key=lambda fault: not fault.serious)
    problems = sum(fault.serious for fault in faults)
    return Finding(check, "problem" if problems else "warning", [fault.text for fault in ordered], problems)


def skipped(check: str, why: str) -> Finding:
    """A check that could not run."""
    return Finding(check, "skipped", [why])


def listed(names: Sequence[object], most: int = SHOWN) -> str:
    """Names in a row; of many only the first."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")
