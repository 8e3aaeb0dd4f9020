"""math: solve a word problem in steps, on quantities that only the tool knows."""

from stateroom.gallery.math.environment import Ledger, MathEnvironment, MathTask

__all__ = ["Ledger", "MathEnvironment", "MathTask"]
