"""The admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateroom.server.faults import error_reply
from stateroom.server.http import Receive, Scope, Send, send_reply

if TYPE_CHECKING:
    from stateroom.server.app import Application


class Admin:
    """Answers below `/admin`."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, error_reply(404, "not_found", "not yet"), None)
