"""Workers that can be killed: `python worker.py URL` forks one for each line it reads, and says what they acknowledge.

A line is a job and its arguments; the answer is the worker's process id. Forking spares each worker the imports.
"""

import asyncio
import os
import sys
from contextlib import suppress

from stateroom import Environment, Session, Sessions, State, open_store, tool
from stateroom.errors import SessionLeased, UnknownSession
from stateroom.session import Result, Verdict

STEPS = 6


class Counter(State):
    value: int = 0
    padding: str = ""


class CountingEnvironment(Environment[Counter]):
    """Counts."""

    @tool
    def increment(self, state: Counter, padding: str = "") -> int:
        """Add one."""
        state.value += 1
        state.padding = padding
        return state.value

    @tool(effect="read")
    def look(self, state: Counter) -> int:
        """The value."""
        return state.value

    def verify(self, state: Counter) -> float:
        return float(state.value)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write, so that workers' lines do not mix


async def play(sessions: Sessions[Counter], first: str, last: str) -> None:
    """Play episodes, or play them on: whatever was done before must not be done again."""
    for number in range(int(first), int(last)):
        name = f"episode {number}"
        try:
            session: Session[Counter] = await sessions.open(name)
        except UnknownSession:
            session = await sessions.seed({}, session_id=name)
        verdict: Verdict | None = session.verdict
        for step in range(STEPS) if verdict is None else ():
            result = await session.call("increment", {"padding": "x" * 700}, call_id=f"call {step}")
            assert result.ok, result
            assert result.output == step + 1, "a result that was recorded is the one that is given"
        verdict = await session.verify()
        say("played", number, verdict.reward)


async def persist(session: Session[Counter], call_id: str) -> Result:
    """Call, and while others hold the session try again."""
    while True:
        with suppress(SessionLeased):
            return await session.call("increment", call_id=call_id)


async def hold(sessions: Sessions[Counter], session_id: str, seconds: str) -> None:
    """Hold a session, and add one after the other until told to stop by the session's end."""
    session = await sessions.open(session_id)
    async with session.hold(float(seconds)):
        say("holding")
        for number in range(1_000_000):
            result = await persist(session, f"held {number}")
            say("added", number, result.output)
            if session.state.value > 100_000:
                return
            await asyncio.sleep(0.01)


async def work(url: str, job: str, *arguments: str) -> None:
    async with open_store(url) as store:
        await globals()[job](Sessions(CountingEnvironment(), store), *arguments)
    say("finished")


def main(url: str) -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with suppress(KeyboardInterrupt):
                asyncio.run(work(url, *line.split()))
            os._exit(0)
        say("worker", child)
        while True:  # bury the dead
            with suppress(ChildProcessError):
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            break


if __name__ == "__main__":
    main(sys.argv[1])
