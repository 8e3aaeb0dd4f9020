"""What an agent costs beside its model: a step of a long conversation, a whole episode, and one that waits."""

from __future__ import annotations

import asyncio
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.http import serving_bare
from benchmarks.process import RESIDENT, python
from benchmarks.timing import Figure, Timed, elapsed, interleaved, slowdown, speedup
from stateroom import Sessions, open_store
from stateroom.agent import Agent, Context, run as work
from stateroom.errors import ModelUnavailable
from stateroom.gallery import CounterEnvironment
from stateroom.model import Answer, Model, ModelSource, Request, function_call, message
from stateroom.rollout import RunFiles, plan_run, run
from stateroom.session import Session

SHORT, LONG = 20, 2000
"""Items of the conversations that are compared."""
STEPS = 60
"""Of which a step has two: a call, and what it came to."""
BUDGET = 1500
"""Tokens of a bounded view: some forty items."""

CALLS = 6
AT_ONCE = 64
EPISODES = 512
HOPS = 1 + 1 + 1 + (CALLS + 1) + CALLS + 1
"""Requests of such an episode where the agent, the model and the tools are servers: to run it, to let the agent work,
to seed, one for each answer and each call, and to verify."""

TASK = {"initial_count": 0, "expected_count": CALLS, "responses_create_params": {"input": "count"}}


class Increments(Model):
    """Calls a tool so many times, at once, and leaves the times at which it was asked."""

    def __init__(self, calls: int, away_at: int | None = None) -> None:
        self.calls = calls
        self.away_at = away_at
        self.asked: list[float] = []

    async def answer(self, request: Request) -> Answer:
        self.asked.append(time.perf_counter())
        if request.step == self.away_at:
            raise ModelUnavailable("this is where the others go on")
        if request.step == self.calls:
            return Answer([message("Done.")])
        return Answer([function_call("increment_counter", f"call_{request.step}", count=1)])


async def conversation() -> list[Figure]:
    """A step of an agent after 2,000 items of conversation, against one after 20.

    A step is a call, an answer, and both on record. Within a token budget it includes its share of compaction, which
    some steps do for all the others.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("memory", "memory://"), ("SQLite", f"sqlite:///{folder}/sessions.db")):
            for bounds, context in (("", Context()), (", within a budget", Context(BUDGET))):
                async with open_store(url) as store:
                    sessions = Sessions[Any](CounterEnvironment(), store)
                    long, short = [await _steps_after(sessions, items, context) for items in (LONG, SHORT)]
                    many, few = await interleaved(long, short)
                what = f"a step after {LONG:,} items of conversation against after {SHORT}: {name}{bounds}"
                figures.append(slowdown(what, many, few, 1.5))
    return figures


async def _steps_after(sessions: Sessions[Any], items: int, context: Context) -> Timed:
    """Gives the seconds of a step in forks of a session whose conversation has so many items."""
    session = await sessions.seed(TASK)
    await _work_until(session, context, items // 2)

    async def steps() -> float:
        fork = await session.fork()
        asked = await _work_until(fork, context, items // 2 + STEPS)
        return (asked[-1] - asked[0]) / (len(asked) - 1)

    return steps


async def _work_until(session: Session[Any], context: Context, step: int) -> list[float]:
    model = Increments(10 * LONG, away_at=step)
    try:
        await work(Agent(model, context=context, max_steps=10 * LONG), session)
    except ModelUnavailable:
        return model.asked
    raise RuntimeError("the agent was not to come to an end")


async def overhead() -> list[Figure]:
    """Whole episodes of an agent, against the requests that they would be among separate servers.

    The episodes are those of `stateroom run` on the memory store, with verdict and rows, and a model that answers at
    once. The echoes stand for an agent, a model, tools and a verifier that do nothing else: 1 request to run an
    episode, 1 to let the agent work, 1 to seed, 7 to the model, 6 to tools and 1 to verify, by aiohttp over persistent
    connections.
    """
    with tempfile.TemporaryDirectory() as folder, serving_bare("echo") as echo:
        numbers = count()
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with aiohttp.ClientSession(connector=connector) as client:

            async def ours() -> float:
                return await _episodes(RunFiles(Path(folder) / f"{next(numbers)}.jsonl"))

            async def hops() -> float:
                return await _echoes(client, f"http://127.0.0.1:{echo.port}/")

            episode, requests = await interleaved(ours, hops, rounds=7)
    what = f"episodes/s of {CALLS} calls against {HOPS} HTTP echoes each, {AT_ONCE} at once"
    return [speedup(what, episode, requests, 2)]


async def _episodes(files: RunFiles) -> float:
    model = Increments(CALLS)
    plan = plan_run(
        "counter",
        model=ModelSource("increments", lambda seed: model),
        input=[TASK],
        output=files.rollouts,
        store="memory://",
        repeats=EPISODES,
        concurrency=AT_ONCE,
    )
    start = time.perf_counter()
    report = await run(plan)
    seconds = time.perf_counter() - start
    if report.metrics["agent_metrics"]["mean/reward"] != 1.0:
        raise RuntimeError(f"the episodes went wrong: {report.first_error}")
    return seconds / EPISODES


async def _echoes(client: aiohttp.ClientSession, url: str) -> float:
    left = iter(range(EPISODES))

    async def some() -> None:
        for _ in left:  # shared
            for _ in range(HOPS):
                async with client.post(url, json={"count": 1}) as reply:
                    await reply.json()

    return await elapsed(asyncio.gather(*(some() for _ in range(AT_ONCE)))) / EPISODES


WAITING = """
import asyncio, os, threading
from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.agent import Agent, run
from stateroom.model import Answer, Model, function_call

class Till(State):
    paid: int = 0

class TillEnvironment(Environment[Till]):
    @tool
    def pay(self, state: Till, ask, amount: int) -> str:
        "Pay, if somebody agrees."
        answer = ask(f"Pay {amount}?")
        state.paid += amount
        return answer

    def verify(self, state: Till) -> float:
        return float(state.paid == 5)

class Pays(Model):
    async def answer(self, request):
        return Answer([function_call("pay", "call_0", amount=5)])

def held():
    return len(asyncio.all_tasks()) + threading.active_count() + len(os.listdir("/proc/self/fd"))

async def wait(sessions, number):
    for _ in range(number):
        session = await sessions.seed({})
        trajectory = await run(Agent(Pays()), session)
        assert trajectory.status == "waiting", trajectory
        if "URL" != "memory://":
            sessions.forget(session.id)

async def main():
    async with open_store("URL") as store:
        sessions = Sessions(TillEnvironment(), store)
        await wait(sessions, 200)
        before, holds = resident(), held()
        await wait(sessions, NUMBER)
        print((resident() - before) / NUMBER, held() - holds)

asyncio.run(main())
"""

WAITERS = 5000


async def waiting() -> list[Figure]:
    """The memory of sessions whose agents wait for a person's answer.

    Sessions at hand are kept in this process; forgotten ones are only in the store, and are loaded when the answer
    comes. Neither holds a task, a thread or an open file.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for name, url, bar in (
            ("at hand on memory", "memory://", 8.0),
            ("forgotten on SQLite", f"sqlite:///{folder}/sessions.db", 1.0),
        ):
            code = RESIDENT + WAITING.replace("URL", url).replace("NUMBER", str(WAITERS))
            size, held = map(float, python(code).split())
            detail = f"{size:,.0f} B each, of {WAITERS:,}"
            figures.append(Figure(f"kB of memory for a waiting session, {name}", size / 1000, bar, "at most", detail))
            what = f"tasks, threads and open files that {WAITERS:,} of them hold"
            figures.append(Figure(what, held, 0, "at most", name))
    return figures
