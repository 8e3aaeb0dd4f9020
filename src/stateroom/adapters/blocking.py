"""Waiting for async work from other threads than the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Blocking:
    """Lets other threads wait for work on the loop on which this was made."""

    def __init__(self, instead: str) -> None:
        """`instead` is what to use on the loop itself, which cannot wait for itself."""
        self.loop = asyncio.get_running_loop()
        self._instead = instead

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self.loop:
            work.close()
            raise asyncio.InvalidStateError(f"on its own event loop it can only be awaited: use {self._instead}")
        if self.loop.is_closed():
            work.close()
            raise asyncio.InvalidStateError("its event loop is closed, and there is no other on which it could work")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()
