"""Measuring: ratios between things that run side by side, so that a busy machine slows both."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal


class NotInstalled(Exception):
    """A benchmark needs something that is not there."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(f"{what} is not installed; install it with: {command}")


Timed = Callable[[], Awaitable[float]]
"""Does some work and gives the seconds of one unit of it."""


@dataclass(frozen=True)
class Figure:
    """One line of the report: what was measured, the bar, and the two things compared."""

    what: str
    ratio: float
    bar: float
    kind: Literal["at most", "at least"]
    detail: str

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.kind == "at most" else self.ratio >= self.bar


async def interleaved(first: Timed, second: Timed, rounds: int = 11) -> tuple[float, float]:
    """The medians of two measurements that take turns, after one turn each to warm up."""
    await first()
    await second()
    pairs = [(await first(), await second()) for _ in range(rounds)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


async def repeated(action: Callable[[], Awaitable[object]], times: int) -> float:
    """Seconds of one action, from so many in a row."""
    start = time.perf_counter()
    for _ in range(times):
        await action()
    return (time.perf_counter() - start) / times


async def elapsed(work: Awaitable[object]) -> float:
    """Seconds of some work."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs"


def slowdown(what: str, ours: float, theirs: float, most: float) -> Figure:
    """How many times as long as theirs ours takes, by the seconds of each."""
    return Figure(what, ours / theirs, most, "at most", f"{micro(ours)} / {micro(theirs)}")


def speedup(what: str, ours: float, theirs: float, least: float) -> Figure:
    """How many times as often as theirs ours is done in a second, by the seconds of each."""
    return Figure(what, theirs / ours, least, "at least", f"{1 / ours:,.0f}/s / {1 / theirs:,.0f}/s")
