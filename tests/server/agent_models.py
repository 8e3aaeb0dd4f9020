"""Agents to be named by their path: policies that wait for their tester, and one that reports its tokens."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from stateroom.gallery import CounterEnvironment
from stateroom.model import Answer, Item, Model, Request, Usage, message, outputs_of

ReferencePolicy: Any = CounterEnvironment.policies["reference"]


class Waits(ReferencePolicy):  # type: ignore[misc]
    """Answers when `gate` is open; for tests in the process of the server, which share these."""

    gate: ClassVar[asyncio.Event]
    arrived: ClassVar[asyncio.Semaphore]
    """Released by each request for an answer."""
    cancelled: ClassVar[asyncio.Event]
    asked: ClassVar[Counter[int]]
    """How often an answer was asked for, by the number of results before it."""

    @classmethod
    def reset(cls) -> None:
        cls.gate, cls.cancelled = asyncio.Event(), asyncio.Event()
        cls.arrived, cls.asked = asyncio.Semaphore(0), Counter()

    async def respond(self, conversation: list[Item], tools: list[Item]) -> Any:
        done = len(outputs_of(conversation))
        self.asked[done] += 1
        if done:
            self.arrived.release()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return super().respond(conversation, tools)


class WaitsForFile(ReferencePolicy):  # type: ignore[misc]
    """Writes a file when it was given a result, and goes on when another file is there."""

    async def respond(self, conversation: list[Item], tools: list[Item]) -> Any:
        folder = Path(os.environ["STATEROOM_TEST_FOLDER"])
        if outputs_of(conversation):
            (folder / f"worker-{os.getpid()}-{id(self)}").touch()
            await asyncio.to_thread(_wait_for, folder / "go")
        return super().respond(conversation, tools)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


class Reporting(Model):
    """Says a word, and reports its tokens."""

    async def answer(self, request: Request) -> Answer:
        return Answer([message("Done.")], Usage(7, 5))
