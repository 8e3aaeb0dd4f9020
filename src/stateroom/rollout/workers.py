"""Work that is shared out among so many workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def share_out(jobs: Iterable[T], workers: int, do: Callable[[T], Awaitable[None]]) -> None:
    """Do all jobs, so many at a time; the next is looked for when somebody is free. One that raises ends it all."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:  # shared
            await do(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
    except ExceptionGroup as error:
        raise error.exceptions[0] from None
