import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(params=["sqlite", "file", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """A fresh store of each kind that processes can share."""
    return fresh_url(request.param)


class Nursery:
    """Starts workers, and hears what they say."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._workers: list[int] = []
        self.said: list[list[str]] = []

    async def start(self, *job: object) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, job)).encode() + b"\n")
        pid = int((await self.hear("worker"))[0])
        self._workers.append(pid)
        return pid

    async def hear(self, word: str, patience: float = PATIENCE) -> list[str]:
        """The rest of the next line that begins with a word."""
        assert self._process.stdout is not None
        while True:
            line = (await asyncio.wait_for(self._process.stdout.readline(), patience)).decode().split()
            assert line, "the workers have gone"
            self.said.append(line)
            if line[0] == word:
                return line[1:]

    def signal(self, pid: int, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, what)

    async def end(self) -> None:
        for pid in self._workers:
            self.signal(pid, signal.SIGKILL)
        self._process.kill()
        await self._process.communicate()


Nurse = Callable[[str], Awaitable[Nursery]]


@pytest.fixture
async def nurse() -> AsyncIterator[Nurse]:
    started: list[Nursery] = []

    async def start(url: str) -> Nursery:
        process = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), url, stdin=PIPE, stdout=PIPE)
        started.append(Nursery(process))
        return started[-1]

    yield start
    for nursery in started:
        await nursery.end()
