"""What the servers of tests share: they end with a `with`, and with whoever started them."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from tests.patience import PATIENCE

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Stoppable(ABC):
    """A server that is stopped at the end of a `with`."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and remove what it has kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerProcess(Stoppable):
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it answers."""

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        self.kill()

    def restart(self) -> None:
        """Start the server again, at the same port with what it has kept on disk, ending it first if it runs."""
        self.kill()
        self.start()

    def wait_until_ready(self, ask: Callable[[], object], *errors: type[Exception]) -> None:
        """Ask until there is an answer; these errors mean that it is not there yet."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                ask()
                return
            except errors as error:
                if self.process.poll() is not None or time.monotonic() > give_up:
                    self.kill()
                    raise RuntimeError(f"the server does not start: {error}") from error
                time.sleep(0.02)


class ServerThread(Stoppable):
    """A server in an event loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @abstractmethod
    async def _end(self) -> None:
        """End all connections."""

    def stop(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def die_with_parent(how: signal.Signals | None = None) -> None:
    """Let this process get a signal, SIGKILL by default, when the thread that started it ends. Only Linux can."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, how or signal.SIGKILL)
