"""Ports for servers."""

import socket

BUS = 10_000
"""So far above its port a server of a Redis cluster listens for the others."""


def free_port() -> int:
    """A port of this machine that nobody listens at, nor at the one that is `BUS` above it."""
    while True:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            try:
                above.bind(("127.0.0.1", port + BUS))
            except (OSError, OverflowError):  # it is taken, or there is no such port
                continue
            return port
