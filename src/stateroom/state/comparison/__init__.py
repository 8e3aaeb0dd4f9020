"""How a state differs from the one that was to be reached: for verifiers."""

from stateroom.state.comparison.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
