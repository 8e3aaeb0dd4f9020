"""MCP over streamable HTTP: the way in, and the SDK behind it, which is loaded when somebody first asks for it.

The SDK takes longer to import than a server may take to start, and most servers are never asked for MCP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

from stateroom.errors import NotFound
from stateroom.server.faults import error_reply, fault, wrong_method
from stateroom.server.hosted import Hosted
from stateroom.server.http import Disconnected, Receive, Reply, Request, Scope, Send, send_reply

if TYPE_CHECKING:
    from stateroom.server.mcp.tools import ToolServer

logger = logging.getLogger(__name__)

SDK = ("mcp", "mcp_types")
"""The packages of the SDK; a server without them serves all else."""


class MCP:
    """The tools of one environment for MCP clients; to be entered before use.

    No request depends on another, so that any of several workers can answer any of them. There is nothing to push to a
    client and no MCP session to end: only POST is answered.
    """

    def __init__(self, hosted: Hosted, max_body: int) -> None:
        self.hosted = hosted
        self.max_body = max_body
        self.path = f"{hosted.prefix}/mcp"
        self._ready: asyncio.Future[ToolServer] | None = None
        self._running: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._over.set()
        if self._running is not None:
            await self._running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self.max_body)
        try:
            reply = self._refusal(scope)
            if reply is None:
                self.hosted.admit_mcp(request)
                reply = await (await self._server()).answer(request)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = _no_sdk(error) or fault(error, f"{scope['method']} {scope['path']}")
        await send_reply(scope, send, reply)

    def _refusal(self, scope: Scope) -> Reply | None:
        """The reply to what is no message of an MCP client."""
        path = scope["path"]
        if path.rstrip("/") != self.path:
            raise NotFound(f"there is nothing at {path}; MCP is at {self.path}")
        if scope["method"] == "POST":
            return None
        return wrong_method(path, ["POST"])

    async def _server(self) -> ToolServer:
        """The SDK's side; requests that come while it is loaded wait for that."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._ready))
        return await asyncio.shield(self._ready)

    async def _run(self, ready: asyncio.Future[ToolServer]) -> None:
        """Run the SDK's side until all is over: it must end in the task in which it began, which no request is."""
        try:
            server = await asyncio.to_thread(_load, self.hosted, self.max_body)
        except Exception as error:
            logger.warning("MCP cannot be served", exc_info=error)
            ready.set_exception(error)
            return
        async with server.running():
            ready.set_result(server)
            await self._over.wait()


def _no_sdk(error: Exception) -> Reply | None:
    """The reply when the SDK is not installed, or is too old."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] not in SDK:
        return None
    return error_reply(
        501,
        "not_installed",
        "this server cannot speak MCP for want of the mcp package: pip install 'stateroom[server]'",
    )


def _load(hosted: Hosted, max_body: int) -> ToolServer:
    from stateroom.server.mcp.tools import ToolServer  # noqa: PLC0415 - this imports the SDK

    return ToolServer(hosted, max_body)
