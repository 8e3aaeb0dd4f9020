"""Processes that tests start and listen to."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]

QUICK_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_asyncio.plugin"}
"""Variables for a pytest that a test starts: the plugins of packages that happen to be there take seconds to load."""

Start = Callable[..., Awaitable[Process]]
"""Starts a process with these arguments after those that all have."""


@asynccontextmanager
async def starting(*arguments: str) -> AsyncIterator[Start]:
    """Starts Python with these arguments and more; what is still alive at the end is killed."""
    started: list[Process] = []

    async def start(*more: str) -> Process:
        command = [sys.executable, *arguments, *more]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def line(process: Process) -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().strip()
