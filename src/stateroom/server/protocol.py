"""HTTP/1.1 as uvicorn speaks it, with bounds on what a client may send, how long, and what it may leave unread.

Replies have a shorter way. One that is whole goes out in one piece, where ASGI takes two messages and two system
calls; and the replies of one turn of the event loop go out together, so that the clients are woken once and not one by
one. At full load that is a third of what a tool call costs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateroom.server.faults import error_reply
from stateroom.server.http import ACCESS_LOG, LIMITS, REPLY, STOPPING, TOO_LARGE, Reply
from stateroom.server.monitoring.access_log import AccessLog
from stateroom.server.options import Limits

OUTBOX = "stateroom.outbox"
"""The key of the server's state under which its connections find the outbox that they share."""

LAST_WORDS = 5
"""Seconds that a server that stops leaves a client for the rest of its request, or to read on."""

DISCARD = struct.pack("ii", 1, 0)
"""The value of `SO_LINGER` with which the system, too, drops what was not sent."""

HOPELESS = 16
"""A head that is so many times larger than it may be is not read to its end, and gets no reply.

A smaller one is: the cookie that must go back with the reply may stand at its end.
"""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits: Limits = self.app_state.get(LIMITS, Limits())
        self.requests: AccessLog | None = self.app_state.get(ACCESS_LOG)
        self.outbox: Outbox = self.app_state.setdefault(OUTBOX, Outbox(self.loop))
        self._head: float = 0
        """Bytes of a head that is not whole yet; below zero while a body comes in."""
        self._packet = self._uncounted = 0
        """Bytes that came in last, and those in which the last request ended: some of the next head may be in them."""
        self._earlier: deque[RequestResponseCycle] = deque()
        """Requests that were not answered yet when the client sent another one."""
        self._deadline: asyncio.TimerHandle | None = None
        """When the request that has begun must be whole."""
        self._stalled: asyncio.TimerHandle | None = None
        """When the client must have read more of what is sent to it; None while nothing waits to be sent."""
        self._unsent = 0
        """Bytes that waited to be sent when it last had."""
        self._stopping = False

    # What comes in.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused whenever something is unsent, and so watched
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
        if (self._head or self.scope is not None) and not self.transport.is_closing():
            if self._head > self.limits.head * HOPELESS:
                self.transport.close()
            elif self.scope is None:
                self._wait_for_more()
            elif self._deadline is None:  # which more bytes do not put off
                self._wait_for_rest()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 when a client offers another protocol: the parser took the body for part of that."""
        framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        if framing:
            self.scope = self.cycle.scope
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
        most = self.limits.head
        if self._head + self._uncounted > most and self._size() > most:
            self.url = b"/"  # wherever it was meant to go, and some are too long to be parsed
            self.app = self.app_state.get(TOO_LARGE, self.app)
        if self.requests is not None:
            self.app = partial(self.requests.around, self.app)
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
        self.scope = None  # type: ignore[assignment] # until another request begins
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON what is wrong, and hang up; what was asked before is answered first."""
        if not self._end_with_replies():
            self._refuse(error_reply(400, "bad_request", "this is not an HTTP request that can be understood"), 0.0)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked: a client may close its own side of the connection and still read.

        One that reads a stream is taken to be gone: that shows only in what is sent to it, and that may be nothing.
        """
        streams = self.cycle is not None and self.cycle.chunked_encoding is True
        return self._end_with_replies() and not streams

    def _end_with_replies(self) -> bool:
        """Hang up when the whole requests are answered; False if there are none."""
        self.outbox.flush()
        if self.pipeline and self.cycle.more_body:  # the last one is not whole, and others come before it
            self.pipeline.popleft()
            self.cycle = self._earlier.pop()
        if not self._is_answering():
            return False
        self.cycle.keep_alive = False
        return True

    def _refuse(self, reply: Reply, seconds: float) -> None:
        """Answer the request that has begun, unless that was done before it was whole, and hang up."""
        if self.cycle is None or self.cycle.scope is not self.scope or not self.cycle.response_started:
            self.transport.write(b"".join([*_head(reply), b"connection: close\r\n\r\n", reply.body]))
            if self.requests is not None:
                self.requests.write(self.scope or {"client": self.client}, reply.status, len(reply.body), seconds)
        self.transport.close()

    # How long it takes.

    def _wait_for_rest(self) -> None:
        """Hang up unless the request that has begun is whole in time."""
        self._deadline = self.loop.call_later(self._patience(self.limits.receive), self._refuse_late)

    def _refuse_late(self) -> None:
        self._deadline = None
        self.outbox.flush()
        if self._is_answering():  # until that is done, no more may be read
            self._wait_for_rest()
        else:
            message = f"the request was not whole within {self.limits.receive:g} s"
            self._refuse(error_reply(408, "request_timeout", message), self.limits.receive)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reading()

    def _wait_for_reading(self) -> None:
        """Drop the connection unless the client reads on."""
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self._patience(self.limits.send), self._drop_stalled)

    def _drop_stalled(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._wait_for_reading()
        else:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DISCARD)
            self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _patience(self, seconds: float) -> float:
        """Seconds that a client has for something; fewer when the server stops."""
        return min(seconds, LAST_WORDS) if self._stopping else seconds

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
        if self.scope is None and not self._is_answering():
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self.timeout_keep_alive_task, self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        for cycle in self._earlier:  # only the newest request was told
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def shutdown(self) -> None:
        if STOPPING in self.app_state:
            self.app_state[STOPPING].set()
        self.outbox.flush()
        super().shutdown()
        self._stopping = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._wait_for_rest()
        if self._stalled is not None:
            self._stalled.cancel()
            self._wait_for_reading()


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
