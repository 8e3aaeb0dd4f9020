"""Running the application: sockets, worker processes, and an end that loses nothing."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import uvicorn

from stateroom.environment import Environment, find_environment
from stateroom.errors import CannotListen
from stateroom.server.app import Application, Mount
from stateroom.server.monitoring.tracing import configure
from stateroom.server.options import Options
from stateroom.server.processes import InWorker, Server, Supervisor, log_to_stderr
from stateroom.server.protocol import LAST_WORDS, Protocol

if TYPE_CHECKING:
    from stateroom.server.monitoring.spans import Tracing

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that they never use a dead one."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""

GARBAGE = (10_000, 20, 20)
"""When to look for garbage: ten times as rarely as Python does, since a request leaves none behind."""

HUNG = 30
"""Seconds without a sign of life after which a worker is replaced; on a busy machine one may take some to start."""


@dataclass(frozen=True)
class Served:
    """Makes the application, here or in a worker process."""

    environments: tuple[str, ...]
    """Registered names, module:Class or path.py:Class."""
    options: Options

    def __call__(self) -> Mount:
        tracing = configure()
        app = self.application(tracing)
        gc.collect()
        gc.freeze()  # what is there now stays: there is no need to look through it again and again
        gc.set_threshold(*GARBAGE)
        return app if tracing is None else tracing.around(app)

    def application(self, tracing: Tracing | None = None) -> Application:
        """The application without what comes around it."""
        return Application(self._environments(), self.options, tracing=tracing)

    def longest_call(self) -> float:
        """Seconds that a call may take."""
        tools = [tool for environment in self._environments() for tool in environment.tools.values()]
        return max([self.options.limits.seconds, *(tool.procedure.timeout or 0.0 for tool in tools)])

    def _environments(self) -> list[Environment[Any, Any]]:
        return [find_environment(name)() for name in self.environments]


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes one that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except (OSError, TypeError) as error:  # a TypeError is of a name that cannot be one
        listening.close()
        reason = getattr(error, "strerror", None) or "this is no address"
        raise CannotListen(f"cannot listen on {host}:{port}: {reason}") from error
    return listening


def run(served: Served, listening: socket.socket, workers: int = 1) -> None:
    """Serve until a signal says stop: calls in flight are finished, and new ones refused."""
    log_to_stderr()
    longest = served.longest_call()
    if workers == 1:
        Server(configured(served, longest)).run([listening])
        return
    with TemporaryDirectory(prefix="stateroom-") as folder:
        shared = replace(served, options=replace(served.options, figures=Path(folder)))
        Supervisor(configured(InWorker(shared), longest, workers), [listening]).run()


def configured(make: Callable[[], Mount], longest_call: float, workers: int = 1) -> uvicorn.Config:
    """What uvicorn is told."""
    return uvicorn.Config(
        make,
        factory=True,
        loop="auto",
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # what is wanted of them is read where it is needed
        workers=workers,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=ceil(longest_call) + LAST_WORDS,
        timeout_worker_healthcheck=HUNG,
    )
