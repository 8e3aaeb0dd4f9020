"""Environments that tests of several folders use."""

from typing import Any

from stateroom import Environment, State, ToolError, tool


class Purse(State):
    spent: int = 0


class PurseEnvironment(Environment[Purse]):
    """Spend money."""

    @tool
    def increment_counter(self, state: Purse, ask: Any, count: int) -> int:
        """Spend, if somebody says yes to more than one."""
        if count > 1 and ask(f"Spend {count}?") != "yes":
            raise ToolError("not allowed")
        state.spent += count
        return state.spent

    def verify(self, state: Purse) -> float:
        return float(state.spent)
