"""The access log: a line for each request, without anything by which a client shows who it is."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from stateroom.server.http import REPLY, Message, Receive, Scope, Send
from stateroom.state import to_json

logger = logging.getLogger("stateroom.access")

LONGEST_PATH = 1000
"""Characters of a path in a line, which must be short enough to be written at once: other processes write too."""


class AccessLog:
    """Writes a line for each request that got a reply, when the reply has ended.

    Headers, cookies and the query are left out: tokens and keys are in them.
    """

    def __init__(self, environment_of: Callable[[str, str], str | None], *, as_json: bool) -> None:
        self._environment_of = environment_of
        self._as_json = as_json

    async def around(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let an application answer a request, and write its line."""
        status, size, start = 0, 0, perf_counter()

        async def send_noted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        scope.pop(REPLY, None)  # so that every reply is sent this way
        try:
            await app(scope, receive, send_noted)
        finally:
            if status:
                self.write(scope, status, size, perf_counter() - start)

    def write(self, scope: Mapping[str, Any], status: int, size: int, seconds: float) -> None:
        """Write the line of a request, of which perhaps not even the method is known."""
        client, method, path = scope["client"], scope.get("method"), scope.get("raw_path", b"").decode("latin-1")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0] if client else None,
            "method": method,
            "path": path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}...",
            "status": status,
            "bytes": size,
            "seconds": round(seconds, 6),
            "environment": self._environment_of(method, scope["path"]) if method and path else None,
        }
        if self._as_json:
            logger.info(to_json(line).decode())
        else:
            logger.info(" ".join("-" if value in (None, "") else str(value) for value in line.values()))
