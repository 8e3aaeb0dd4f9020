"""Pauses between attempts."""

from __future__ import annotations

from dataclasses import dataclass
from random import uniform


@dataclass(frozen=True)
class Pauses:
    """Random pauses below a bound that doubles, so that those who failed together do not try again together."""

    first: float
    """Seconds that the first pause may take."""
    longest: float

    def bound(self, failures: int) -> float:
        """Seconds that the pause after some failures in a row may take."""
        return min(self.longest, self.first * 2 ** min(failures - 1, 30)) if failures > 0 else 0.0

    def after(self, failures: int) -> float:
        """The pause after some failures in a row, in seconds."""
        return uniform(0.0, self.bound(failures))
