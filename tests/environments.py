"""Environments that many tests share: the smallest ones with which a promise can be seen."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from stateroom import Environment, State, ToolError, tool

S = TypeVar("S", bound=State | None)


class Unjudged(Environment[S], Generic[S]):
    """An environment whose verdicts nobody looks at."""

    def verify(self) -> float:
        return 0.0


class Tally(State):
    total: int = 0


class TallyEnvironment(Environment[Tally]):
    """Add up."""

    def __init__(self) -> None:
        self.runs = 0
        """How often a tool has changed the state."""
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        """Set by the tools that wait, and what they wait for: nothing, unless a test clears it."""
        self.go_on.set()

    @tool
    def add(self, state: Tally, number: int = 1) -> int:
        """Add a number."""
        return self._add(state, number)

    @tool(effect="read")
    def look(self, state: Tally) -> int:
        """The total."""
        return state.total

    @tool
    async def add_slowly(self, state: Tally, number: int = 1) -> int:
        """Add a number, when it is time."""
        return await self._add_when_it_is_time(state, number)

    @tool(effect="external")
    async def send(self, state: Tally, number: int = 1) -> int:
        """Add a number, and reach outside."""
        return await self._add_when_it_is_time(state, number)

    def _add(self, state: Tally, number: int) -> int:
        self.runs += 1
        state.total += number
        return state.total

    async def _add_when_it_is_time(self, state: Tally, number: int) -> int:
        self._add(state, number)
        self.begun.set()
        await asyncio.sleep(0)
        await self.go_on.wait()
        return state.total

    def verify(self, state: Tally) -> float:
        return float(state.total)


class Time:
    """A clock that a test moves on."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


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
