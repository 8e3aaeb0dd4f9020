"""The connections of one store: opened when they are needed, thrown away when they are broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from stateroom.errors import StoreUnavailable
from stateroom.store.postgresql.connection import Link


class Pool:
    """At most `size` connections. Who comes when all are in use waits for the first that comes back."""

    def __init__(self, connect: Callable[[], Awaitable[Link]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._turns = asyncio.Semaphore(size)
        self._closing = asyncio.Lock()
        self._idle: list[Link] = []
        self._loop = asyncio.get_running_loop()
        self._failure: StoreUnavailable | None = None
        self._failed = 0.0

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """A connection for as long as the block runs."""
        asked = self._loop.time()
        async with self._turns:
            link = self._find() or await self._open(asked)
            try:
                yield link
            finally:
                self._give_back(link)

    def _find(self) -> Link | None:
        while self._idle:
            link = self._idle.pop()
            if link.alive:
                return link
        return None

    async def _open(self, asked: float) -> Link:
        if self._failure is not None and self._failed >= asked:
            raise StoreUnavailable(str(self._failure))  # it was tried since; so many need not wait one after another
        try:
            return await self._connect()
        except StoreUnavailable as error:
            self._failure, self._failed = error, self._loop.time()
            raise

    def _give_back(self, link: Link) -> None:
        if link.idle:
            self._idle.append(link)
        else:
            link.close()  # broken, or somebody stopped waiting for its answer

    async def close(self) -> None:
        """Wait for all who have, or wait for, a connection; then close them all."""
        async with self._closing, AsyncExitStack() as turns:
            for _ in range(self._size):
                await turns.enter_async_context(self._turns)
            while self._idle:
                self._idle.pop().close()
