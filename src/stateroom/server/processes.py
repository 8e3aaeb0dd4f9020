"""The processes that serve: one, or several that are watched, replaced when they die, and never left behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import FrameType

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess

from stateroom.server.app import Mount

logger = logging.getLogger(__name__)

STOP = {signal.SIGINT, signal.SIGTERM}
"""The signals that say stop; all others do what they do to any process."""

LINGER = 1.0
"""Seconds after which a process ends that has stopped, whatever its threads still do."""


class Server(uvicorn.Server):
    """Serves in this process. To stop when told so is a success: the signal is not raised again at the end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        end = threading.Timer(LINGER, os._exit, (0,))  # threads that tools have left behind keep nobody waiting
        end.daemon = True
        end.start()


class Supervisor(Multiprocess):
    """Runs workers until it is told to stop."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        before = {number: signal.getsignal(number) for number in SIGNALS.keys() - STOP}
        super().__init__(config, sockets)
        for number, handler in before.items():
            signal.signal(number, handler)

    def run(self) -> None:
        super().run()
        if any(process.exitcode == STARTUP_FAILURE for process in self.processes):
            sys.exit(STARTUP_FAILURE)

    def terminate_all(self) -> None:
        for listening in self.sockets:
            listening.close()  # the workers close theirs, and then nobody can connect any more
        super().terminate_all()

    def init_processes(self) -> None:
        with _interrupt_blocked():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        with _interrupt_blocked():
            super().keep_subprocess_alive()
        if not STOP.isdisjoint(self.signal_queue):
            return  # they were told to stop, as this process was: what took their place will be told too
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                logger.warning("worker %d died (exit code %s); %d takes its place", old.pid, old.exitcode, new.pid)


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Processes started in here do not see Ctrl-C until they can stop in good order.

    They inherit that it is blocked. One that comes meanwhile waits for the parent, and is not lost.
    """
    resource_tracker.ensure_running()  # to start it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class InWorker:
    """Makes the application in a worker process, which ends with its parent."""

    make: Callable[[], Mount]

    def __call__(self) -> Mount:
        log_to_stderr()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # from here on uvicorn knows what to do with it
        threading.Thread(target=_end_with_parent, name="stateroom-parent", daemon=True).start()
        try:
            return self.make()
        except Exception:
            logger.exception("a worker cannot start")
            os._exit(STARTUP_FAILURE)  # at once: one that is asked for a sign of life while it ends is waited for long


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def log_to_stderr() -> None:
    """Let the log of a process that serves be seen, but not a line for each client that sends nonsense."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    access = logging.getLogger("stateroom.access")
    access.setLevel(logging.INFO)
    access.propagate = False  # its lines are whole: they may be JSON
    access.handlers = [logging.StreamHandler()]
