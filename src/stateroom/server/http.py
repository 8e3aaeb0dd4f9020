"""One request and its reply, straight on ASGI: what a tool call needs is little, and is all that is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from stateroom.errors import Busy, InvalidArguments, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"

STOPPING = "stateroom.stopping"
"""The key of the server's state under which lies the event that it is stopping."""

LIMITS = "stateroom.limits"
"""The key of the server's state under which lie the application's limits."""

ACCESS_LOG = "stateroom.access_log"
"""The key of the server's state under which lies the access log, if one is kept."""

TOO_LARGE = "stateroom.too_large"
"""The key of the server's state under which lies the application that answers requests with a larger head."""

REPLY = "stateroom.reply"
"""The key of a scope under which our own protocol offers a shorter way for a whole reply."""

_decode = msgspec.json.Decoder().decode


class Disconnected(Exception):
    """The client went away before its request was whole."""


class Request:
    """What an endpoint sees of a request, and may say of the reply: the cookie that goes with it, whatever it is."""

    __slots__ = (
        *("_announced", "_body", "_receive", "call_id", "cookies"),
        *("key", "max_body", "scope", "secure", "set_cookie"),
    )

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.scope = scope
        self._receive = receive
        self._body: bytes | None = None
        self.max_body = max_body
        self.set_cookie: bytes | None = None
        """The `Set-Cookie` of the reply."""
        self.cookies = b""
        self._announced = b""
        """The length that the body is said to have."""
        self.call_id: str | None = None
        """The id that the client gave a call, so that to send it again is to do nothing."""
        self.key = ""
        """The name of the API key that it is made with, if there are keys."""
        self.secure = scope["scheme"] == "https"
        """True when the client speaks TLS, with us or with a proxy before us."""
        for name, value in scope["headers"]:  # once: this is on the way of every call
            if name == b"cookie":
                self.cookies = self.cookies + b"; " + value if self.cookies else value
            elif name == b"idempotency-key":
                self.call_id = value.decode("latin-1") or None
            elif name == b"content-length":
                self._announced = value
            elif name == b"x-forwarded-proto":
                self.secure = value.partition(b",")[0].strip().lower() == b"https"  # the client's own comes first

    def header(self, wanted: bytes) -> bytes | None:
        """The first header of this name, which is in lower case."""
        for name, value in self.scope["headers"]:
            if name == wanted:
                return value  # type: ignore[no-any-return]
        return None

    @property
    def bearer(self) -> bytes | None:
        """The token in `Authorization: Bearer TOKEN`, if there is one."""
        for name, value in self.scope["headers"]:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                if scheme.lower() == b"bearer" and given.strip():
                    return given.strip()  # type: ignore[no-any-return]
        return None

    @property
    def query(self) -> dict[str, str]:
        """The parameters in the URL."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    async def body(self) -> bytes:
        """The whole body; one that is said to be too large is not waited for."""
        if self._body is not None:
            return self._body
        if self._announced and int(self._announced) > self.max_body:
            raise self._too_large()
        message = await self._receive()
        data: bytes = message.get("body", b"")
        if not message.get("more_body") and message["type"] == "http.request" and len(data) <= self.max_body:
            self._body = data
            return data
        parts, size = [data], len(data)
        while True:
            if message["type"] == "http.disconnect":
                raise Disconnected
            if size > self.max_body:
                raise self._too_large()
            if not message.get("more_body"):
                self._body = b"".join(parts)
                return self._body
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])

    def replayed(self) -> Receive:
        """What an application receives that reads the body for itself, after it was read here."""
        unread: list[Message] = [{"type": "http.request", "body": self._body, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await self._receive()

        return receive

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than the {self.max_body:,} bytes that this server takes")

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object; nothing at all is an empty one."""
        body = await self.body()
        try:
            value = _decode(body)
        except RecursionError:
            raise BadJSON("the body is not JSON that can be read: it is nested too deeply") from None
        except (msgspec.DecodeError, ValueError):
            value = _decode_odd(body) if body else {}
        if type(value) is not dict:
            raise InvalidArguments("the body must be a JSON object")
        return value


class InFlight:
    """Counts requests while they are answered, of which there may be so many: `with in_flight: ...`.

    Raises `Busy` for one too many. A request is counted when it is whole, so that a client that is slow to send keeps
    nobody out.
    """

    __slots__ = ("count", "most")

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most

    def __enter__(self) -> None:
        if self.count >= self.most:
            raise Busy(f"{self.most} requests are in flight already; try again in a second")
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class BadJSON(InvalidArguments):
    """The body is not JSON."""


def _decode_odd(body: bytes) -> Any:
    """What is JSON for Python, if not for everybody: a large int, half a surrogate pair."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadJSON("the body is not JSON that can be read: it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadJSON(f"the body is not JSON: it is not UTF-8 from byte {error.start} on") from None
    except json.JSONDecodeError as error:
        raise BadJSON(f"the body is not JSON: {error}") from None
    except ValueError:
        raise BadJSON("the body is not JSON that can be read: it has a number with too many digits") from None


class Reply(msgspec.Struct, frozen=True):
    """What goes back."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def send_reply(scope: Scope, send: Send, reply: Reply, cookie: bytes | None = None) -> None:
    """Send a reply, with the session's cookie."""
    at_once = scope.pop(REPLY, None)  # out of the scope: it leads back to it, and such circles are slow to be freed
    if at_once is not None and scope["method"] != "HEAD" and at_once(reply, cookie):
        return
    headers = [(b"content-type", reply.content_type), (b"content-length", b"%d" % len(reply.body))]
    if cookie is not None:
        headers.append((b"set-cookie", cookie))
    if reply.headers:
        headers += reply.headers
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
