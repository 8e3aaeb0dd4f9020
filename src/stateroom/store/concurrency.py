"""What stores share that serve many callers at a time: a gate that drains on close, and the size of a batch."""

from __future__ import annotations

import asyncio

from stateroom.errors import StoreUnavailable


class Gate:
    """Admits operations until a store closes; closing waits for those that are under way."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inside = 0
        self._closed: asyncio.Event | None = None
        """None while the store is open; set when no operation is left."""

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def __enter__(self) -> None:
        if self._closed is not None:
            raise StoreUnavailable(f"{self._name} is closed")
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._closed is not None and not self._inside:
            self._closed.set()

    async def close(self) -> None:
        """Refuse new operations, and wait for those under way."""
        if self._closed is None:
            self._closed = asyncio.Event()
            if not self._inside:
                self._closed.set()
        await self._closed.wait()


FEW = 8
"""Writes that are not worth two batches."""


def first_batch(waiting: int) -> int:
    """How many of the writes that wait after a pause go first: half of them.

    After a pause, all sessions are in step. From then on, one half makes its next calls while the other is written.
    """
    return waiting if waiting <= FEW else (waiting + 1) // 2
