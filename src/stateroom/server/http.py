"""One request and its reply, straight on ASGI: what a tool call needs is little, and is all that is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from stateroom.errors import InvalidArguments, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"

_decode = msgspec.json.Decoder().decode


class Disconnected(Exception):
    """The client went away before its request was whole."""


class Request:
    """What an endpoint sees of a request, and may say of the reply: the cookie that goes with it, whatever it is."""

    __slots__ = ("_receive", "cookie", "max_body", "scope")

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.scope = scope
        self._receive = receive
        self.max_body = max_body
        self.cookie: bytes | None = None
        """The `Set-Cookie` of the reply."""

    def header(self, wanted: bytes) -> bytes | None:
        """The first header of this name, which is in lower case."""
        for name, value in self.scope["headers"]:
            if name == wanted:
                return value  # type: ignore[no-any-return]
        return None

    @property
    def query(self) -> dict[str, str]:
        """The parameters in the URL."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    async def body(self) -> bytes:
        """The whole body."""
        message = await self._receive()
        data: bytes = message.get("body", b"")
        if not message.get("more_body") and message["type"] == "http.request" and len(data) <= self.max_body:
            return data
        parts, size = [data], len(data)
        announced = self.header(b"content-length") or b"0"
        while True:
            if message["type"] == "http.disconnect":
                raise Disconnected
            if size > self.max_body or (announced.isdigit() and int(announced) > self.max_body):
                raise TooLarge(f"the body is larger than the {self.max_body:,} bytes that this server takes")
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object; nothing at all is an empty one."""
        body = await self.body()
        if not body:
            return {}
        try:
            value = _decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            value = _decode_odd(body)
        if type(value) is not dict:
            raise InvalidArguments("the body must be a JSON object")
        return value


class BadJSON(InvalidArguments):
    """The body is not JSON."""


def _decode_odd(body: bytes) -> Any:
    """What is JSON for Python, if not for everybody: a large int, half a surrogate pair."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadJSON(f"the body is not JSON: {error}") from None


class Reply(msgspec.Struct, frozen=True):
    """What goes back."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def send_reply(send: Send, reply: Reply, cookie: bytes | None) -> None:
    """Send a reply, with the session's cookie."""
    headers = [(b"content-type", reply.content_type), (b"content-length", b"%d" % len(reply.body)), *reply.headers]
    if cookie is not None:
        headers.append((b"set-cookie", cookie))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
