"""Ports for servers that a test starts, and perhaps stops and starts again."""

import atexit
import socket

BUS = 10_000
"""So far above its port a server of a Redis cluster listens for the others."""


def free_port() -> int:
    """A port that is this process's own while it lives, with the one that is `BUS` above it.

    No other socket is given one of them by chance, also while their server is down: this process is bound to them and
    does not listen. A server that sets SO_REUSEADDR, as servers do, can listen there all the same.
    """
    while True:
        port = _reserve(0)
        assert port is not None
        if _reserve(port + BUS) is not None:
            return port


def _reserve(port: int) -> int | None:
    """The port, if it is free; any that is, for 0."""
    reserved = socket.socket()
    try:
        reserved.bind(("127.0.0.1", port))
    except (OSError, OverflowError):  # it is taken, or there is no such port
        reserved.close()
        return None
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: to be bound, it had to be free
    atexit.register(reserved.close)
    found: int = reserved.getsockname()[1]
    return found
