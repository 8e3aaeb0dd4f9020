"""Running the application until a signal says stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from stateroom.model import ModelSource
from stateroom.server.model.app import ModelApplication
from stateroom.server.options import Limits
from stateroom.server.processes import Server, log_to_stderr
from stateroom.server.running import configured

PATIENCE = 30.0
"""Seconds that answers may still take when it is told to stop."""


def run(
    source: ModelSource,
    listening: socket.socket,
    limits: Limits,
    hosts: Sequence[str] | None,
    announce: Callable[[], None],
) -> None:
    """Serve a model: answers in the making are finished, and new requests refused.

    `announce` is called as soon as a signal to stop would be heard. `hosts` are the names that requests may be for,
    besides this machine's own; None: any.
    """
    log_to_stderr()
    Server(configured(lambda: ModelApplication(source, limits, hosts, announce), PATIENCE)).run([listening])
