"""HTTP/1.1 as uvicorn speaks it, with bounds on what a client may send and how long, and a shorter way for replies.

A reply that is whole goes out in one piece, where ASGI takes two messages and two system calls; and the replies of one
turn of the event loop go out together, so that the clients are woken once and not one by one. At full load that is a
third of what a tool call costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateroom.server.faults import error_reply
from stateroom.server.http import MAX_HEAD, REPLY, STOPPING, TOO_LARGE, Reply

OUTBOX = "stateroom.outbox"
"""The key of the server's state under which its connections find the outbox that they share."""


HOPELESS = 16
"""A head that is so many times larger than it may be is not read to its end, and gets no reply.

A smaller one is: the cookie that must go back with the reply may stand at its end.
"""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_head: float = self.app_state.get(MAX_HEAD, inf)
        self.outbox: Outbox = self.app_state.setdefault(OUTBOX, Outbox(self.loop))
        self._head: float = 0
        """Bytes of a head that is not whole yet; below zero while a body comes in."""
        self._packet = self._uncounted = 0
        """Bytes that came in last, and those in which the last request ended: some of the next head may be in them."""
        self._earlier: deque[RequestResponseCycle] = deque()
        """Requests that were not answered yet when the client sent another one."""

    # What comes in.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_more()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._packet = len(data)
        self._head += self._packet
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")
        if self._head and not self.transport.is_closing():
            if self._head > self.max_head * HOPELESS:
                self.transport.close()
            else:
                self._wait_for_more()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 when a client offers another protocol: the parser took the body for part of that."""
        framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        if framing:
            self.cycle.more_body = True
            self.cycle.keep_alive = False  # what may follow the body would be the old parser's
            self._head = -inf
            self.parser = HttpRequestParser(_BodyOnly(self))
            lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in framing), b"\r\n"]
            self.parser.feed_data(b"\r\n".join(lines))
        if rest:
            self.data_received(rest)

    def on_headers_complete(self) -> None:
        app, before = self.app, self.cycle
        if self._head + self._uncounted > self.max_head and self._size() > self.max_head:
            self.url = b"/"  # wherever it was meant to go, and some are too long to be parsed
            self.app = self.app_state[TOO_LARGE]
        self._head = -inf
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        self.scope[REPLY] = partial(_send_whole, self.cycle, self.outbox)  # type: ignore[literal-required]
        if self.pipeline:
            while self._earlier and self._earlier[0].response_complete:
                self._earlier.popleft()
            self._earlier.append(before)

    def on_message_complete(self) -> None:
        self._head, self._uncounted = 0, self._packet
        super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON what is wrong, and hang up; what was asked before is answered first."""
        self.outbox.flush()
        if self.pipeline and self.cycle.more_body:  # it is this request that is broken, and others come before it
            self.pipeline.popleft()
            self.cycle = self._earlier.pop()
        if self._is_answering():
            self.cycle.keep_alive = False
            return
        reply = error_reply(400, "bad_request", "this is not an HTTP request that can be understood")
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(b"".join([*_head(reply), b"connection: close\r\n\r\n", reply.body]))
        self.transport.close()

    # The end of it.

    def _is_answering(self) -> bool:
        """Whether there are whole requests without a whole reply."""
        cycle = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete and not cycle.more_body)

    def _wait_for_more(self) -> None:
        """Hang up when nothing comes for long."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if not self._is_answering():
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for cycle in self._earlier:  # only the newest request was told
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def shutdown(self) -> None:
        if STOPPING in self.app_state:
            self.app_state[STOPPING].set()
        self.outbox.flush()
        super().shutdown()


class _BodyOnly:
    """What a parser tells of a request whose head was read by another."""

    def __init__(self, protocol: Protocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


class Outbox:
    """Replies that wait for the end of this turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[RequestResponseCycle, bytes, Callable[..., None]]] = []

    def put(self, cycle: RequestResponseCycle, data: bytes) -> None:
        """Send this when all that is ready to run now has run."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append((cycle, data, cycle.on_response))

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        for cycle, data, on_response in waiting:
            if cycle.disconnected or cycle.transport.is_closing():
                continue
            cycle.transport.write(data)
            if not cycle.keep_alive:
                cycle.transport.close()
            on_response()


def _send_whole(cycle: RequestResponseCycle, outbox: Outbox, reply: Reply, cookie: bytes | None) -> bool:
    """Send a reply in one piece; False if the client does not keep up with what was sent before."""
    if cycle.flow.write_paused or cycle.response_started:
        return False
    cycle.response_started = cycle.response_complete = True
    parts = _head(reply)
    for name, value in (*cycle.default_headers, *reply.headers):
        parts += (name, b": ", value, b"\r\n")
    if cookie is not None:
        parts += (b"set-cookie: ", cookie, b"\r\n")
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    parts += (b"\r\n", reply.body)
    outbox.put(cycle, b"".join(parts))
    cycle.message_event.set()
    return True


def _head(reply: Reply) -> list[bytes]:
    """How a reply begins."""
    length = b"\r\ncontent-length: %d\r\n" % len(reply.body)
    return [STATUS_LINE[reply.status], b"content-type: ", reply.content_type, length]
