"""Workers that can be killed: `python worker.py URL` forks one for each line it reads, and says what they acknowledge.

A line is a job and its arguments; the answer is the worker's process id. Forking spares each worker the imports.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from stateroom import Environment, Session, SessionLimits, Sessions, State, open_store, tool
from stateroom.errors import Conflict, SessionLeased, StoreUnavailable, UnknownSession
from stateroom.session import Result, Verdict

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, Result]]

STEPS = 6
JUMP = 2 * 24 * 3600.0
"""Seconds by which a clock may be wrong. Sessions live for a week, so that none expires."""
SKEW = [0.0]


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


async def persist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it succeeds, whoever stands in the way."""
    while True:
        with suppress(SessionLeased, Conflict, StoreUnavailable):
            return await attempt()
        await asyncio.sleep(0.01)


async def hold(sessions: Sessions[Counter], session_id: str, seconds: str) -> None:
    """Hold a session, and add one after the other until told to stop by the session's end."""
    session = await sessions.open(session_id)
    async with session.lease(float(seconds)):
        say("holding")
        for number in range(1_000_000):
            result = await persist(partial(session.call, "increment", call_id=f"held {number}"))
            say("added", number, result.output)
            if session.state.value > 100_000:
                return
            await asyncio.sleep(0.01)


async def press_on(sessions: Sessions[Counter], name: str, first: str, seed: str, rooms: str, jumps: str) -> None:
    """Call for ever, from a number on, and say what is sent and what was acknowledged.

    The seed decides in which room each call is made, and how: held, cut off and perhaps sent again, or sent twice at
    once. If there are jumps, the clock goes back and forth by days, and nothing is held: a lease could last as long.
    """
    for number in count(int(first)):
        luck = Random(f"{seed} {name} {number}")
        room, call_id = luck.randrange(int(rooms)), f"{name}/{number}"
        if int(jumps) and luck.random() < 0.2:
            SKEW[0] = luck.uniform(-JUMP, JUMP)
        if luck.random() < 0.02:
            await persist(sessions.sweep)
        session = await persist(partial(sessions.open, f"room {room}"))
        call: Call = partial(persist, partial(session.call, "increment", call_id=call_id))
        say("sent", room, call_id)
        match luck.choice(["call"] * 6 + ["cancel", "cancel", "twice", "call" if int(jumps) else "hold"]):
            case "cancel":
                await cut_off(call(), luck.randrange(9))
                if luck.random() < 0.3:
                    continue  # nobody ever learns what became of it
            case "twice":
                await asyncio.gather(call(), call())
            case "hold":
                with suppress(SessionLeased, StoreUnavailable):
                    async with session.lease(0.5):
                        await call()
        say("acknowledged", room, call_id, (await call()).output)


def skewed() -> float:
    """The time by a clock that may be wrong."""
    return time.time() + SKEW[0]


async def cut_off(work: Coroutine[Any, Any, object], turns: int) -> None:
    """Let a piece of work run for some turns of the event loop, and cancel it."""
    task = asyncio.create_task(work)
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def work(url: str, job: str, *arguments: str) -> None:
    try:
        async with AsyncExitStack() as stack:
            store = await persist(lambda: stack.enter_async_context(open_store(url)))  # it may be just restarting
            await globals()[job](Sessions(CountingEnvironment(), store, SessionLimits(now=skewed)), *arguments)
    except BaseException as error:
        say("failed", repr(error))
        raise
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
