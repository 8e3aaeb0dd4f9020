import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
        self.said: list[list[str]] = []

    async def start(self, *job: object) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, job)).encode() + b"\n")
        return int((await self.hear("worker"))[0])

    async def hear(self, word: str, patience: float = PATIENCE) -> list[str]:
        """The rest of the next line that begins with a word."""
        while True:
            line = await asyncio.wait_for(self.read(), patience)
            assert line, "the workers have gone"
            self.said.append(line)
            assert line[0] != "failed", line
            if line[0] == word:
                return line[1:]

    async def read(self) -> list[str]:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().split()

    def signal(self, pid: int, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, what)

    async def end(self) -> None:
        """Kill the workers, and hear what they had still said."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        rest, _ = await self._process.communicate()
        self.said += [line.split() for line in rest.decode().splitlines()]


@asynccontextmanager
async def nursing(url: str) -> AsyncIterator[Nursery]:
    """A nursery of workers on one store, which are killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), url, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    nursery = Nursery(process)
    try:
        yield nursery
    finally:
        await nursery.end()


Nurse = Callable[[str], Awaitable[Nursery]]


@pytest.fixture
async def nurse() -> AsyncIterator[Nurse]:
    async with AsyncExitStack() as stack:
        yield lambda url: stack.enter_async_context(nursing(url))
