"""A process of its own that works on a session, for tests of several processes and of sudden death."""

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stateroom import Environment, Sessions, State, open_store, tool


class Counter(State):
    value: int = 0
    seen: list[str] = []


class WorkshopEnvironment(Environment[Counter]):
    """Counts, sends, and hangs on demand."""

    @tool
    def increment(self, state: Counter, by: str) -> int:
        """Add one."""
        state.value += 1
        state.seen.append(by)
        return state.value

    @tool(effect="external")
    def send(self, state: Counter, outbox: str, hang: bool) -> str:
        """Send a line, and hang before anyone learns of it."""
        return self._send(state, outbox, hang)

    @tool(effect="external", on_unknown="retry")
    def send_again(self, state: Counter, outbox: str, hang: bool) -> str:
        """Send a line that may be sent twice."""
        return self._send(state, outbox, hang)

    @tool
    def hang(self, state: Counter) -> None:
        """Change the state, and never return."""
        state.value = 99
        say("inside")
        threading.Event().wait()

    @tool(timeout=0.05)
    def spin(self, state: Counter) -> None:
        """Never return, and never wait either."""
        while True:
            time.sleep(0.001)

    def _send(self, state: Counter, outbox: str, hang: bool) -> str:
        with Path(outbox).open("a") as file:
            file.write("sent\n")
        state.value += 1
        if hang:
            say("inside")
            threading.Event().wait()
        return "sent"

    def verify(self, state: Counter) -> float:
        return float(state.value)


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def increment(sessions: Sessions[Counter], session_id: str, name: str) -> None:
    """Say ready, wait to be told, and add fifty."""
    session = await sessions.open(session_id)
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(50):
        result = await session.call("increment", {"by": f"{name}/{number}"})
        assert result.ok, result.error


async def increment_for_ever(sessions: Sessions[Counter], session_id: str, name: str) -> None:
    """Add one after the other, saying each call id when it is acknowledged."""
    session = await sessions.open(session_id)
    for number in range(1_000_000):
        call_id = f"{name}/{number}"
        assert (await session.call("increment", {"by": call_id}, call_id=call_id)).ok
        say(call_id)


async def undo_for_ever(sessions: Sessions[Counter], session_id: str) -> None:
    """Undo two and redo one, again and again, saying the value each time."""
    session = await sessions.open(session_id)
    while True:
        await session.undo(2)
        say(session.state.value)
        await session.redo()
        say(session.state.value)


async def call(sessions: Sessions[Counter], session_id: str, name: str, *more: str) -> None:
    """Call a tool that hangs."""
    session = await sessions.open(session_id)
    arguments: dict[str, Any] = {"outbox": more[0], "hang": True} if more else {}
    await session.call(name, arguments, call_id="c")


async def spin(sessions: Sessions[Counter], session_id: str) -> None:
    """Leave tools behind that never return, and end all the same."""
    session = await sessions.open(session_id)
    for _ in range(3):
        say((await session.call("spin")).error)


async def main(url: str, job: str, *more: str) -> None:
    async with open_store(url) as store:
        await globals()[job](Sessions(WorkshopEnvironment(), store), *more)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
