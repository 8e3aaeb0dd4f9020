"""Comparing a state with the expected one, for verifiers."""

from stateroom.state.comparison.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
