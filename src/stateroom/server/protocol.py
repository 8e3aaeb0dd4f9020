"""HTTP/1.1 by uvicorn, with limits on the size and the duration of requests, and on unread responses.

A whole response has a shorter way: it is written at once, where ASGI takes two messages and two system calls. The
responses of one turn of the event loop are written together, so that clients wake once and not one by one. At full load
this saves a third of the cost of a tool call.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateroom.server.asgi import BODY, SEND_WHOLE, SERVER, ServerState
from stateroom.server.http import WATCHED, HTTPResponse, error_response
from stateroom.server.options import Limits

WRITE_BATCH = "stateroom.write_batch"
"""The key of the server's state with the batch of writes that its connections share."""

STOP_SECONDS = 5
"""Seconds that a client has to complete its request, or to read on, when the server stops."""

DISCARD = struct.pack("ii", 1, 0)
"""The value of `SO_LINGER` that makes the system drop unsent data."""

HOPELESS_FACTOR = 16
"""A head that exceeds its limit by this factor is not read to its end, and gets no response.

A smaller one is read: the cookie that must go back with the response may be at its end.
"""


START = b"%bcontent-type: %b\r\ncontent-length: %d\r\n"
"""The start of a response: its status line and first headers."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        server: ServerState | None = self.app_state.get(SERVER)
        self.limits = Limits() if server is None else server.limits
        self.access = None if server is None else server.access_log
        self.server_info = server
        self.batch: WriteBatch = self.app_state.setdefault(WRITE_BATCH, WriteBatch(self.loop))
        self._head: float = 0
        """Bytes of an incomplete head; below zero while a body arrives."""
        self._packet = self._uncounted = 0
        """Bytes that arrived last, and with the end of the last request: they may hold a part of the next head."""
        self._earlier: deque[RequestResponseCycle] = deque()
        """Requests without a response yet when the client sent another one."""
        self._deadline: asyncio.TimerHandle | None = None
        """When the request that has begun must be complete."""
        self._stalled: asyncio.TimerHandle | None = None
        """When the client must have read more; None while nothing waits to be sent."""
        self._unsent = 0
        """Bytes that waited to be sent when the client last read."""
        self._idle_since = 0.0
        """When the last bytes arrived without a request, or the last response was sent."""
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` is called whenever data is unsent
        self._idle_since = self.loop.time()
        self._wait_for_more(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        self._packet = len(data)
        self._head += self._packet
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")
        if (self._head or self.scope is not None) and not self.transport.is_closing():
            if self._head > self.limits.max_head * HOPELESS_FACTOR:
                self.transport.close()
            elif self.scope is None:
                self._idle_since = self.loop.time()
            elif self._deadline is None:  # more bytes do not postpone it
                self._wait_for_rest()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Stay with HTTP/1.1 when a client offers another protocol, for which the parser has taken the body."""
        framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        if framing:
            self.scope = self.cycle.scope
            self.scope.pop(BODY, None)  # type: ignore[misc] # it is yet to come
            self.cycle.more_body = True
            self.cycle.keep_alive = False  # what follows the body would be the old parser's
            self._head = -inf
            self.parser = HttpRequestParser(_BodyOnly(self))
            lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in framing), b"\r\n"]
            self.parser.feed_data(b"\r\n".join(lines))
        if rest:
            self.data_received(rest)

    def on_headers_complete(self) -> None:
        app, before = self.app, self.cycle
        most = self.limits.max_head
        if self._head + self._uncounted > most and self._size() > most:
            self.url = b"/"  # some are too long to be parsed
            self.app = self.app if self.server_info is None else self.server_info.refuse_head
        if self.access is not None:
            self.app = partial(self.access.around, self.app)
        self._head = -inf
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        self.scope[SEND_WHOLE] = partial(_send_whole, self.cycle, self.batch)  # type: ignore[literal-required]
        if self.pipeline:
            while self._earlier and self._earlier[0].response_complete:
                self._earlier.popleft()
            self._earlier.append(before)

    def on_message_complete(self) -> None:
        self._head, self._uncounted = 0, self._packet
        if len(self.cycle.body) <= HIGH_WATER_LIMIT:  # else reading is paused until the body is received
            self.scope[BODY] = bytes(self.cycle.body)  # type: ignore[literal-required]
        self.scope = None  # type: ignore[assignment] # until another request begins
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().on_message_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        """Respond in JSON, and hang up; earlier requests are answered first."""
        if not self._close_after_responses():
            self._refuse(error_response(400, "bad_request", "this is not a valid HTTP request"), 0.0)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked: a client may close its own side of the connection and still read.

        A client that reads a stream counts as gone: that would show only in what is sent to it, which may be nothing.
        So does one for which long work is done.
        """
        cycle = self.cycle
        gone = cycle is not None and (cycle.chunked_encoding is True or WATCHED in cycle.scope)
        return self._close_after_responses() and not gone

    def _close_after_responses(self) -> bool:
        """Hang up when all complete requests are answered; False if there are none."""
        self.batch.flush()
        if self.pipeline and self.cycle.more_body:  # the last one is incomplete, and others come before it
            self.pipeline.popleft()
            self.cycle = self._earlier.pop()
        if not self._is_answering():
            return False
        self.cycle.keep_alive = False
        return True

    def _refuse(self, response: HTTPResponse, seconds: float) -> None:
        """Answer the request that has begun, unless it was answered already, and hang up."""
        if self.cycle is None or self.cycle.scope is not self.scope or not self.cycle.response_started:
            start = START % (STATUS_LINE[response.status], response.content_type, len(response.body))
            self.transport.write(start + b"connection: close\r\n\r\n" + response.body)
            if self.access is not None:
                self.access.write(self.scope or {"client": self.client}, response.status, len(response.body), seconds)
        self.transport.close()

    # Timeouts.

    def _wait_for_rest(self) -> None:
        """Hang up unless the request that has begun is complete in time."""
        self._deadline = self.loop.call_later(self._timeout(self.limits.receive_timeout), self._refuse_late)

    def _refuse_late(self) -> None:
        self._deadline = None
        self.batch.flush()
        if self._is_answering():  # until then nothing more is read
            self._wait_for_rest()
        else:
            message = f"the request was not complete within {self.limits.receive_timeout:g} s"
            self._refuse(error_response(408, "request_timeout", message), self.limits.receive_timeout)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reading()

    def _wait_for_reading(self) -> None:
        """Drop the connection unless the client reads on."""
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self._timeout(self.limits.send_timeout), self._drop_stalled)

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

    def _timeout(self, seconds: float) -> float:
        """Seconds that a client has; fewer when the server stops."""
        return min(seconds, STOP_SECONDS) if self._stopping else seconds

    # The end.

    def _is_answering(self) -> bool:
        """Whether there are complete requests without a complete response."""
        cycle = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete and not cycle.more_body)

    def on_response_complete(self) -> None:
        """Start the next request, if there is one. The idle timer runs on: to set one per request would cost more."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _wait_for_more(self, seconds: float) -> None:
        """Hang up when nothing arrives for long."""
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self.scope is not None or self._is_answering():
            self._wait_for_more(self.timeout_keep_alive)
        elif left > 0:
            self._wait_for_more(left)
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self.timeout_keep_alive_task, self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        for cycle in self._earlier:  # only the newest request knows it yet
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def shutdown(self) -> None:
        if self.server_info is not None:
            self.server_info.stopping.set()
        self.batch.flush()
        super().shutdown()
        self._stopping = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._wait_for_rest()
        if self._stalled is not None:
            self._stalled.cancel()
            self._wait_for_reading()


class _BodyOnly:
    """Receives the body of a request whose head another parser has read."""

    def __init__(self, protocol: Protocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


class WriteBatch:
    """Responses that wait for the end of this turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[tuple[RequestResponseCycle, bytes, Callable[..., None]]] = []

    def flush(self) -> None:
        """Send what waits."""
        waiting, self.waiting = self.waiting, []
        for cycle, data, on_response in waiting:
            if cycle.disconnected or cycle.transport.is_closing():
                continue
            cycle.transport.write(data)
            if not cycle.keep_alive:
                cycle.transport.close()
            on_response()


def _send_whole(
    cycle: RequestResponseCycle, batch: WriteBatch, response: HTTPResponse, cookies: Iterable[bytes]
) -> bool:
    """Send a response at once; False if it must take the usual way, as the client does not keep up with reading."""
    if cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = cycle.response_complete = True
    body = response.body
    parts = [START % (STATUS_LINE[response.status], response.content_type, len(body))]
    for header in cycle.default_headers:
        parts.append(b"%b: %b\r\n" % header)
    for header in response.headers:
        parts.append(b"%b: %b\r\n" % header)
    for cookie in cookies:
        parts.append(b"set-cookie: %b\r\n" % cookie)
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    parts += (b"\r\n", body)
    if not batch.waiting:
        batch.loop.call_soon(batch.flush)
    batch.waiting.append((cycle, b"".join(parts), cycle.on_response))
    cycle.message_event.set()
    return True
