"""`stateroom studio` in a process of its own, for measurements from outside, and a model that it can name."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stateroom.model import Item, Policy, message

HOUR = 3600


class Slow(Policy):
    """Thinks for longer than anybody waits."""

    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        await asyncio.sleep(HOUR)
        return [message("Done.")]


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[str]:
    """Studio with some arguments; its root URL."""
    command = [sys.executable, "-m", "stateroom.cli", "studio", *arguments, "--port", "0", "--no-browser"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            yield line.partition("studio: ")[2].strip().removesuffix("/studio/")
        finally:
            process.terminate()
            await process.wait()
