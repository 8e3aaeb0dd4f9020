"""An environment that tells its agent where it is, an agent that plans its way, and a process that runs it."""

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any

from stateroom import Environment, Sessions, State, Task, ToolError, open_store, tool
from stateroom.agent import Agent, Context, DropOldest, run
from stateroom.model import Answer, Item, Model, Request, function_call, message
from stateroom.session import Clock, LogEntry, Session

ASKED: Item = {"type": "message", "role": "user", "content": "Walk to the sea."}

ROW = {"responses_create_params": {"input": [ASKED]}}


class Walk(State):
    at: int = 0


class Walker(State):
    name: str = "nobody"


class WalkTask(Task):
    user: str = "ann"


class TrailEnvironment(Environment[Walk, WalkTask]):
    """Walk to the sea."""

    def instructions(self, state: Walk, user: Walker, clock: Clock) -> str:
        return f"{user.name} is at mile {state.at}, at {clock.now():%M:%S}." if state.at != 1 else ""

    @tool
    def walk(self, state: Walk, miles: int) -> int:
        """Walk on."""
        if miles < 0:
            raise ToolError("there is no way back")
        state.at += miles
        return state.at

    @tool(effect="read")
    def look(self, state: Walk) -> int:
        """Look around."""
        return state.at

    @tool
    def rename(self, user: Walker, name: str) -> None:
        """Give the walker another name."""
        user.name = name

    def verify(self, state: Walk) -> float:
        return float(state.at)


Shown = tuple[str | None, list[Item], Any]
"""What a model was shown: instructions, items, and which tool it must call."""


class Walking(Model):
    """Gives the answers of a script, and notes what it is shown for each."""

    def __init__(self, script: Iterable[list[Item]]) -> None:
        self.script = [*script, [message("There it is.")]]
        self.shown: dict[int, Shown] = {}

    async def answer(self, request: Request) -> Answer:
        settings = request.settings
        self.shown[request.step] = (settings.get("instructions"), [*request.items], settings.get("tool_choice"))
        return Answer(self.script[request.step])


def shown_by(log: Iterable[LogEntry]) -> list[tuple[str | None, list[Item]]]:
    """What a model was shown for each of its answers, by a session's log alone, and what it would be shown now."""
    told, items, shown = "", [ASKED], []
    for entry in log:
        new = entry.facts["items"]
        if entry.kind == "compaction":
            told, items = entry.facts.get("instructions", ""), []
        told = entry.facts.get("instructions", told)
        if entry.facts.get("by") == "model":
            results = [item for item in new if item["type"] == "function_call_output"]
            shown.append((told or None, [*items, *results]))
        items = [*items, *new]
    return [*shown, (told or None, items)]


def steps(*names: str) -> Item:
    return function_call("make_plan", "p", steps=[*names])


def ended(result: str, *, failed: bool = False) -> Item:
    return function_call("end_step", "e", result=result, failed=failed)


SCRIPT: list[list[Item]] = [
    [steps("walk", "rest")],
    [function_call("walk", "a", miles=3)],
    [function_call("walk", "b", miles=-1), function_call("look", "c")],
    [steps("walk more", "rest")],
    [function_call("walk", "d", miles=4), ended("at 7")],
    [ended("no bench", failed=True)],
    [steps("lie down")],
    [ended("slept")],
]
"""A walk on which a call and a step fail."""


def walker(model: Model, messages: int | None = None) -> Agent:
    """An agent that plans, and may be shown few messages."""
    return Agent(model, plan=True, context=Context(messages=messages, strategies=[DropOldest()]))


class Told(Walking):
    """Says what it is shown, and answers when the process is told to go on."""

    async def answer(self, request: Request) -> Answer:
        answer = await super().answer(request)
        sys.stdout.write(f"{json.dumps([request.step, *self.shown[request.step]])}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        return answer


async def main(url: str, session_id: str) -> None:
    async with open_store(url) as store:
        session: Session[Any] = await Sessions[Any](TrailEnvironment(), store).open(session_id)
        await run(walker(Told(SCRIPT), 9), session)
        sys.stdout.write("done\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
