"""An environment whose tools keep a core busy, for the benchmark of engines."""

from __future__ import annotations

from stateroom import Environment, State, tool

CALLS = 5
ROUNDS = 100_000
"""About five milliseconds' work."""


class Work(State):
    done: int = 0


class WorkEnvironment(Environment[Work]):
    """Work."""

    @tool
    def work(self, state: Work) -> int:
        """Keep a core busy for a while."""
        state.done += sum(number & 1 for number in range(ROUNDS)) > 0
        return state.done

    def verify(self, state: Work) -> float:
        return float(state.done == CALLS)


TASK = {"gold": [{"name": "work"}] * CALLS}
