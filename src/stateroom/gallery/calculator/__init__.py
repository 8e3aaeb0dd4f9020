"""calculator: compute a result with four tools. Stateless, with several calls."""

from stateroom.gallery.calculator.environment import CalculatorEnvironment, CalculatorTask

__all__ = ["CalculatorEnvironment", "CalculatorTask"]
