"""An environment to be served by its path: its tools wait, hang, fail, and say which process they are in."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from stateroom import Environment, State, tool


class Tally(State):
    value: int = 0


class Room(Environment[Tally]):
    """Count."""

    def seed(self, task: Any) -> Tally:
        return Tally()

    @tool
    def add(self, state: Tally, count: int = 1) -> dict[str, int]:
        """Add to the tally."""
        state.value += count
        return {"process": os.getpid()}

    @tool(effect="read")
    def look(self, state: Tally) -> dict[str, int]:
        """The tally."""
        return {"value": state.value, "process": os.getpid()}

    @tool
    async def add_later(self, state: Tally, began: str, go_on: str) -> int:
        """Add to the tally when a file is there; make another one to say that it waits."""
        await asyncio.to_thread(_wait, Path(began), Path(go_on))
        state.value += 1
        return state.value

    @tool(effect="read")
    def text(self, state: Tally, size: int, letter: str = "a") -> str:
        """A text of some length."""
        return letter * size

    @tool
    def note(self, state: Tally, size: int) -> str:
        """A text of some length, which stands in the log."""
        state.value += 1
        return "a" * size

    @tool
    async def hang(self, state: Tally) -> None:
        """Leave a thread behind that cannot be stopped."""
        await asyncio.to_thread(time.sleep, 600)

    @tool
    def fail(self, state: Tally, why: str = "the lamp has gone out") -> None:
        """Raise what nobody expects."""
        raise RuntimeError(why)

    def verify(self, state: Tally, episode: Any) -> float:
        return float(state.value)


def _wait(began: Path, go_on: Path) -> None:
    began.touch()
    while not go_on.exists():
        time.sleep(0.01)


class Lobby(Room):
    """The same under another name."""
