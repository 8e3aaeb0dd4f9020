"""Errands: an environment and a model that leave a trace of all that they do, in a process that can be told to die.

It dies as by `kill -9`: `ERRANDS_DIE` says where, or after how many traces; then at some moment shortly after.
"""

import os
import random
import signal
import threading
import time
from itertools import count
from typing import Any

from stateroom import Environment, Episode, SessionInfo, State, ToolError, Verdict, tool
from stateroom.jsonl import Appender
from stateroom.model import Answer, Model, Request, Usage, function_call, message
from stateroom.session import Clock

_traces = count(1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(place: str) -> bool:
    return os.environ.get("ERRANDS_DIE") == place


def trace(*what: Any) -> None:
    """Leave a line outside of all state, in one piece, with the life of its process, or the time."""
    line = " ".join(map(str, (os.environ.get("ERRANDS_LIFE", time.time()), *what)))
    file = os.open(os.environ["ERRANDS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)
    if dies_at(str(next(_traces))):
        threading.Timer(random.uniform(0, 0.02), die).start()


def _write(appender: Appender, line: bytes) -> None:
    """Write a row, and die before, or in the middle of, the third one of a file."""
    lines = appender.path.read_bytes().count(b"\n") if appender.path.exists() else 0
    if lines == 2 and dies_at("row"):
        die()
    if lines == 2 and dies_at("torn row"):
        _written(appender, line[: len(line) // 2])
        die()
    _written(appender, line)


if os.environ.get("ERRANDS_DIE"):
    _written, Appender.write = Appender.write, _write  # type: ignore[method-assign,assignment]


class Errands(State):
    purse: int = 0
    letters: list[str] = []
    answered: int = 0


class ErrandEnvironment(Environment[Errands]):
    """Earn, look and send letters, for somebody who has something to say to it."""

    name = "errands"

    def seed(self, task: Any, rng: random.Random) -> Errands:
        return Errands(purse=task.purse + rng.randrange(1000))

    @tool
    def earn(self, state: Errands, session: SessionInfo, rng: random.Random, ref: str) -> int:
        """Earn something."""
        trace("tool", session.id, ref)
        state.purse += rng.randrange(1000)
        return state.purse

    @tool
    def spend(self, state: Errands, session: SessionInfo, ref: str) -> int:
        """Spend most of what can be in the purse."""
        trace("tool", session.id, ref)
        if state.purse < 1500:
            raise ToolError(f"{state.purse} is not enough")
        state.purse -= 1500
        return state.purse

    @tool(effect="read")
    def look(self, state: Errands, session: SessionInfo, ref: str) -> dict[str, Any]:
        """Look into the purse."""
        trace("tool", session.id, ref)
        return {"purse": state.purse, "letters": len(state.letters)}

    @tool(effect="external", on_unknown="retry")
    async def send(self, state: Errands, session: SessionInfo, clock: Clock, new_id: Any, ref: str) -> str:
        """Send a letter."""
        trace("tool", session.id, ref)
        clock.advance(60)
        state.letters.append(f"{new_id()} {clock.now()}")
        return state.letters[-1]

    def reply(self, state: Errands, message: str, session: SessionInfo, rng: random.Random) -> str | None:
        trace("reply", session.id, state.answered)
        state.answered += 1
        state.purse += rng.randrange(1000)
        return f"Go on, with {rng.randrange(1000)}." if state.answered < 2 else None

    def verify(self, state: Errands, episode: Episode, session: SessionInfo) -> Verdict:
        trace("verify", session.id)
        if dies_at("verify"):
            die()
        said = len(episode.response["output"])
        return Verdict(state.purse / 10_000, metrics={"letters": len(state.letters), "said": said})


class Runner(Model):
    """Runs errands, in more than one way, and never remembers any of them."""

    name = "runner"

    async def answer(self, request: Request) -> Answer:
        seed, step = request.seed, request.step
        trace("asked", seed, step)
        luck = random.Random(seed * 1000 + step + len(request.items))
        usage = Usage(len(request.items), luck.randrange(9))
        if step == 0:
            names = ["look", "look", "earn", "send", "look"]
        elif seed % 5 == 0:
            names = ["earn"]  # and so on, until it is stopped
        elif step == 1:
            names = ["earn", "nothing", "spend", "earn", "look"]
        elif step == 3:
            names = ["send", "look"]
        else:
            return Answer([message(f"I have run {luck.randrange(9)} errands.")], usage)
        calls = [function_call(name, f"c{step}-{place}", ref=f"c{step}-{place}") for place, name in enumerate(names)]
        return Answer([*calls], usage)
