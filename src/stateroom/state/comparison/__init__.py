"""How a state differs from the expected one, for verifiers."""

from typing import TYPE_CHECKING

from stateroom.lazy import lazy

if TYPE_CHECKING:
    from stateroom.state.comparison.comparison import Comparison, compare
else:
    __getattr__ = lazy(__name__, "stateroom.state.comparison.comparison")

__all__ = ["Comparison", "compare"]
