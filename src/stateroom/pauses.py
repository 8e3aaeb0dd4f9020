"""Pauses between attempts."""

from __future__ import annotations

from dataclasses import dataclass
from random import uniform


@dataclass(frozen=True)
class Pauses:
    """Exponential backoff with jitter: random pauses below a bound that doubles."""

    first: float
    """The longest first pause, in seconds."""
    longest: float

    def bound(self, failures: int) -> float:
        """The longest pause after some failures in a row, in seconds."""
        return min(self.longest, self.first * 2 ** min(failures - 1, 30)) if failures > 0 else 0.0

    def after(self, failures: int) -> float:
        """A random pause after some failures in a row, in seconds."""
        return uniform(0.0, self.bound(failures))
