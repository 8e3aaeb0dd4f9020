"""Running the application: sockets, worker processes, and an end that loses nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from stateroom.environment import find_environment
from stateroom.errors import CannotWrite
from stateroom.server.app import Application
from stateroom.server.faults import error_reply
from stateroom.server.options import Options

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that they never use a dead one."""

LAST_WORDS = 5
"""Seconds that are left for replies to be sent when the time of the slowest call is up."""


@dataclass(frozen=True)
class Served:
    """Makes the application, here or in a worker process."""

    environments: tuple[str, ...]
    """Registered names, module:Class or path.py:Class."""
    options: Options

    def __call__(self) -> Application:
        return Application([find_environment(name)() for name in self.environments], self.options)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes one that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CannotWrite(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listening.set_inheritable(True)
    return listening


def run(served: Served, listening: socket.socket, workers: int = 1) -> None:
    """Serve until a signal says stop: calls in flight are finished, and new ones refused."""
    config = configured(served, served.options, workers)
    if workers > 1:
        Multiprocess(config, [listening]).run()
    else:
        uvicorn.Server(config).run([listening])


def configured(make: Callable[[], Application], options: Options, workers: int = 1) -> uvicorn.Config:
    """What uvicorn is told."""
    return uvicorn.Config(
        make,
        factory=True,
        loop="uvloop",
        http=_protocol(options.limits.head),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        workers=workers,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(options.limits.seconds) + LAST_WORDS,
    )


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that bounds the head of a request: without that, a client could send headers without end."""

    max_head = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: float = 0
        """Bytes of a head that is not whole yet; below zero while a body comes in."""

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > self.max_head and not self.transport.is_closing():
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        if self._head > self.max_head and self._size() > self.max_head:
            raise ValueError("the head is too large")  # the parser stops, and `send_400_response` says why
        self._head = float("-inf")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON what is wrong, and hang up."""
        if self._head > self.max_head:
            reply = error_reply(431, "head_too_large", f"the headers are larger than {self.max_head:,} bytes")
        else:
            reply = error_reply(400, "bad_request", "this is not HTTP")
        head = f"HTTP/1.1 {reply.status} Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head.encode() + b"content-length: %d\r\n\r\n" % len(reply.body) + reply.body)
        self.transport.close()


def _protocol(max_head: int) -> type[Protocol]:
    return type("Protocol", (Protocol,), {"max_head": max_head})


def addresses(listening: socket.socket, names: Sequence[str]) -> dict[str, str]:
    """The URL of each environment."""
    host, port = listening.getsockname()[:2]
    root = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return {name: f"{root}/{name}" if len(names) > 1 else root for name in names}
