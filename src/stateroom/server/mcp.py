"""MCP over streamable HTTP."""

from __future__ import annotations

from typing import Any, Self

from stateroom.server.faults import error_reply
from stateroom.server.hosted import Hosted
from stateroom.server.http import Receive, Scope, Send, send_reply


class MCP:
    """The tools of one environment for MCP clients; to be entered before use."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted = hosted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, error_reply(404, "not_found", "not yet"), None)
