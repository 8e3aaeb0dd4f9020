"""The processes of a server: one, or several workers that are replaced when they die and never left behind.

`run` serves HTTP, and `run_stdio` one MCP client at standard input and output.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.basereload import BaseReload
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess

from stateroom.environment import Environment, make_environment
from stateroom.errors import CannotListen, MissingPackage, check_posix, shortened
from stateroom.model import input_items, text_of
from stateroom.server.app import Application
from stateroom.server.http import ASGIApp
from stateroom.server.options import ApplicationOptions
from stateroom.server.protocol import STOP_SECONDS, Protocol
from stateroom.server.routes import Extension
from stateroom.server.tracing import configure
from stateroom.session import Sessions
from stateroom.store import open_store

logger = logging.getLogger(__name__)

STOP = {signal.SIGINT, signal.SIGTERM}
"""The signals that stop a server; all others act as in any process."""

LINGER_SECONDS = 1.0
"""Seconds after which a stopped process ends, whatever its threads still do."""

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that they never use a closed one."""

MAX_BACKLOG = 2048
"""Connections that may wait to be accepted."""

GARBAGE = (10_000, 20, 20)
"""Thresholds of the garbage collector: ten times Python's own, since a request leaves no cycles."""

NOT_SOURCE = frozenset({"venv", "env", "site-packages", "node_modules"})
"""Folders in which no author writes."""

HUNG_SECONDS = 30
"""Seconds without a response to a health check after which a worker is replaced."""


class ProcessApplication(Application):
    """An application that has a process to itself."""

    async def start(self) -> None:
        await super().start()
        gc.collect()
        gc.freeze()  # what exists now stays, the MCP SDK above all: no collection needs to look at it
        gc.set_threshold(*GARBAGE)


@dataclass(frozen=True)
class ApplicationFactory:
    """Makes the application, in this process or in a worker."""

    environments: tuple[str | type[Environment[Any, Any]] | Environment[Any, Any], ...]
    """Registered names, module:Class or path.py:Class; in this process also classes and instances."""
    options: ApplicationOptions
    env_args: tuple[Mapping[str, Any], ...]
    """Arguments of the constructor of each."""
    extensions: tuple[Extension, ...] = ()

    def __call__(self) -> ASGIApp:
        tracing = configure()
        app = ProcessApplication(self._environments(), self.options, extensions=self.extensions, tracing=tracing)
        return app if tracing is None else tracing.around(app, app.place_of)

    def application(self) -> Application:
        """The application, to be tried in a process that does something else too."""
        return Application(self._environments(), self.options, extensions=self.extensions)

    def longest_call(self) -> float:
        """The longest timeout of a tool, in seconds."""
        tools = [tool for environment in self._environments() for tool in environment.tools.values()]
        return max([self.options.timeout, *(tool.procedure.timeout or 0.0 for tool in tools)])

    def _environments(self) -> list[Environment[Any, Any]]:
        return [*map(make_environment, self.environments, self.env_args)]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(MAX_BACKLOG)
    except (OSError, TypeError) as error:  # a TypeError: the name cannot be one
        listening.close()
        reason = getattr(error, "strerror", None) or "invalid address"
        raise CannotListen(f"cannot listen on {host}:{port}: {reason}") from error
    return listening


def run_stdio(
    environment: Environment[Any, Any], store: str, row: dict[str, Any], announce: Callable[[str], None]
) -> None:
    """Serve an environment's tools over MCP at standard input and output, in a new session, until the client leaves.

    The client gets the task's prompt as the server's instructions. `announce` is called with the session's id.
    """
    try:
        from stateroom.server.mcp import serve_stdio  # noqa: PLC0415 - this imports the MCP SDK
    except ImportError as error:
        raise MissingPackage("MCP", f"version 2 of {error.name}", "'stateroom[mcp]'") from error

    async def serve() -> None:
        async with open_store(store) as opened:
            sessions = Sessions[Any](environment, opened)
            try:
                session = await sessions.seed(row)
                announce(session.id)
                await serve_stdio(environment, session, _prompt(row.get("responses_create_params", {})))
            finally:
                await sessions.stop()

    # The thread that reads standard input cannot be interrupted, and all that was committed is stored: end at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(serve())


def _prompt(parameters: dict[str, Any]) -> str:
    """A task's prompt, as a text."""
    messages = [text_of(item) for item in input_items(parameters.get("input") or "")]
    return "\n\n".join(text for text in (parameters.get("instructions") or "", *messages) if text)


def run(
    factory: ApplicationFactory,
    listening: socket.socket,
    workers: int = 1,
    *,
    reload_folders: Sequence[Path] = (),
    exits: bool = True,
) -> None:
    """Serve until a signal stops the server: calls in flight finish, and new ones are refused.

    A worker is replaced when source files in `reload_folders` change. With `exits`, the process ends soon after the
    server, even if threads are still running. On Windows there is one worker, and no
    reload: otherwise it raises `UnsupportedSystem`.
    """
    if workers > 1 or reload_folders:
        check_posix("a server with several workers or reload", "one worker without reload")
    log_to_stderr()
    longest = factory.longest_call()
    if reload_folders:
        config = configured(WorkerFactory(factory), longest)
        Reloader(config, Server(config).run, [listening], reload_folders).run()
        return
    if workers == 1:
        _run_here(Server(configured(factory, longest), exits=exits), listening)
        return
    with TemporaryDirectory(prefix="stateroom-") as folder:
        shared = replace(factory, options=replace(factory.options, shared_folder=Path(folder)))
        started = Path(folder) / "started"
        Supervisor(configured(WorkerFactory(shared, started), longest, workers), [listening], started).run()


def _run_here(server: Server, listening: socket.socket) -> None:
    """Serve in this process; beside a running loop, as a notebook has, on a thread."""
    if not _in_loop():
        server.run([listening])
        return
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    if threading.current_thread() is not threading.main_thread():
        thread.join()
        return
    before = signal.signal(signal.SIGINT, server.handle_exit)  # which a notebook's stop button sends
    try:
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)


def _in_loop() -> bool:
    """Whether a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def configured(make: Callable[[], ASGIApp], longest_call: float, workers: int = 1) -> uvicorn.Config:
    """The configuration of uvicorn."""
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
        proxy_headers=False,  # they are read where they are needed
        workers=workers,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(longest_call) + STOP_SECONDS,
        timeout_worker_healthcheck=HUNG_SECONDS,
    )


class Server(uvicorn.Server):
    """Serves in this process. To stop on a signal is a success, so the signal is not raised again at the end."""

    def __init__(self, config: uvicorn.Config, *, exits: bool = True) -> None:
        super().__init__(config)
        self._exits = exits

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        if self._exits:
            end = threading.Timer(LINGER_SECONDS, os._exit, (0,))  # threads that tools left behind delay nobody
            end.daemon = True
            end.start()


class Supervisor(Multiprocess):
    """Runs workers until a signal stops it."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], started: Path) -> None:
        """`started` is a file that a worker makes when it has started: then others can be expected to."""
        before = {number: signal.getsignal(number) for number in SIGNALS.keys() - STOP}
        super().__init__(config, sockets)
        for number, handler in before.items():
            signal.signal(number, handler)
        self._started = started
        self._failed = False

    def run(self) -> None:
        super().run()
        if self._failed or any(process.exitcode == STARTUP_FAILURE for process in self.processes):
            sys.exit(1)

    def terminate_all(self) -> None:
        for listening in self.sockets:
            listening.close()  # the workers close theirs, and then no client can connect
        super().terminate_all()

    def init_processes(self) -> None:
        with _interrupt_blocked():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        dead = [process for process in before if process.exitcode is not None]
        if self._started.exists():
            dead = [process for process in dead if process.exitcode == STARTUP_FAILURE]
        if dead and not self.should_exit.is_set() and STOP.isdisjoint(self.signal_queue):
            logger.error("worker %d died while it started (exit code %s)", dead[0].pid, dead[0].exitcode)
            self._failed = True
            self.should_exit.set()
            return
        with _interrupt_blocked():
            super().keep_subprocess_alive()
        if not STOP.isdisjoint(self.signal_queue):
            return  # they got the signal too, and so will those that replaced them
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                logger.warning("worker %d died (exit code %s); %d replaces it", old.pid, old.exitcode, new.pid)


class Reloader(BaseReload):
    """Runs one worker until a signal stops it, and replaces it when source in one of the folders changes.

    Clients wait meanwhile: the socket stays open. A worker that cannot start is replaced after the next change.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        target: Callable[[list[socket.socket] | None], None],
        sockets: list[socket.socket],
        folders: Sequence[Path],
    ) -> None:
        super().__init__(config, target, sockets)
        self._folders = folders
        self._seen = _sources(folders)

    def startup(self) -> None:
        with _interrupt_blocked():
            super().startup()

    def restart(self) -> None:
        with _interrupt_blocked():
            super().restart()

    def shutdown(self) -> None:
        for listening in self.sockets:
            listening.close()  # the worker closes its own, and then no client can connect
        super().shutdown()

    def should_restart(self) -> list[Path] | None:
        self.pause()
        before, self._seen = self._seen, _sources(self._folders)
        changed = sorted(path for path, _ in before.items() ^ self._seen.items())
        if changed:
            logger.warning("%s has changed; the server restarts", changed[0])
        return changed


def _sources(folders: Sequence[Path]) -> dict[Path, int]:
    """The Python files in some folders and below, and when each was changed; not those of installed packages."""
    sources: dict[Path, int] = {}
    for root in folders:
        for folder, names, files in os.walk(root):
            names[:] = [name for name in names if not (name.startswith((".", "__")) or name in NOT_SOURCE)]
            for name in files:
                if name.endswith(".py"):
                    with suppress(FileNotFoundError):  # an editor replaces it
                        sources[Path(folder, name)] = Path(folder, name).stat().st_mtime_ns
    return sources


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Processes that start in this context do not see Ctrl-C until they can stop in good order.

    They inherit the blocked signal. A signal that comes meanwhile waits for the parent, and is not lost.
    """
    resource_tracker.ensure_running()  # its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class WorkerFactory:
    """Makes the application in a worker process, which ends with its parent."""

    make: Callable[[], ASGIApp]
    started: Path | None = None
    """A file that it makes when it has made the application."""

    def __call__(self) -> ASGIApp:
        log_to_stderr()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # from here on uvicorn handles it
        threading.Thread(target=_end_with_parent, name="stateroom-parent", daemon=True).start()
        try:
            made = self.make()
            if self.started is not None:
                self.started.touch()
            return made
        except Exception:
            logger.exception("a worker cannot start")
            os._exit(STARTUP_FAILURE)  # at once: the health check of a worker that ends takes long


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class LogFormatter(logging.Formatter):
    """Writes records of a bounded length: their errors may have texts as large as a request."""

    def format(self, record: logging.LogRecord) -> str:
        return shortened(super().format(record))


def log_to_stderr() -> None:
    """Log to standard error, without a line for each bad request."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    access = logging.getLogger("stateroom.access")
    access.setLevel(logging.INFO)
    access.propagate = False  # its lines are complete: they may be JSON
    access.handlers = [logging.StreamHandler()]
