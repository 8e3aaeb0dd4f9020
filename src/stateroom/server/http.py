"""HTTP requests and responses, directly on ASGI.

Every error is JSON, with a code for programs and a message for people.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from starlette.responses import Response

from stateroom.errors import InvalidArguments, RateLimited, StateroomError, TooLarge, Unauthorized, UnknownKey
from stateroom.session import Code
from stateroom.state import to_json

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

WATCHED = "stateroom.watched"
"""The key of a scope whose request is for nothing once its client has closed its side of the connection."""

JSON = b"application/json"

STATUS_OF_RESULT: dict[Code | None, int] = {
    "unknown_tool": 404,
    "invalid_arguments": 422,
    "tool_error": 400,
    "tool_failed": 500,
    "timeout": 504,
    "too_large": 413,
    "unknown_outcome": 409,
    "shared_conflict": 409,
    "needs_input": 409,
}
"""The status of a failed call. The body is for the model, whatever the status."""

RETRY_AFTER = (b"retry-after", b"1")

_decode = msgspec.json.Decoder().decode


# Requests.


class Disconnected(Exception):
    """The client disconnected before it had a response."""


class BadJSON(InvalidArguments, status=400, code="invalid_json"):
    """The body is not JSON."""


class NotOperator(Unauthorized):
    """A request to an API for operators lacks the API's bearer token."""

    def __init__(self, message: str, api: str) -> None:
        super().__init__(message)
        self.api = api


class HTTPRequest:
    """A request as the wire protocol's endpoints see it.

    An endpoint sets `set_cookie`, which goes back with every response, also with an error.
    """

    __slots__ = ("body", "call_id", "cookies", "headers", "key", "max_body", "receive", "scope", "secure", "set_cookie")

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.scope = scope
        self.receive = receive
        self.max_body = max_body
        self.body = b""
        """The whole body, after `read`."""
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            headers = _joined(scope["headers"])
        self.headers: dict[bytes, bytes] = headers
        """Headers by name in lower case."""
        self.cookies: bytes = headers.get(b"cookie", b"")
        call_id = headers.get(b"idempotency-key")
        self.call_id: str | None = call_id.decode("latin-1") if call_id else None
        """The client's id of the call: a call with an id that was committed runs nothing."""
        proto = headers.get(b"x-forwarded-proto")  # the client's own value comes first
        self.secure = scope["scheme"] == "https" if proto is None else proto.split(b",")[0].strip().lower() == b"https"
        """Whether the client uses TLS, to this server or to a proxy in front of it."""
        self.set_cookie: bytes | None = None
        """The `Set-Cookie` of the response."""
        self.key = ""
        """The name of the API key that the request counts for, if the server has keys."""

    async def read(self) -> None:
        """Receive the whole body. A body that is announced as too large is refused at once."""
        if int(self.headers.get(b"content-length", 0)) > self.max_body:
            raise self._too_large()
        message = await self.receive()
        self.body = message.get("body", b"")
        if message["type"] == "http.disconnect":
            raise Disconnected
        if message.get("more_body") or len(self.body) > self.max_body:
            await self._read_rest()

    async def _read_rest(self) -> None:
        parts, size, more = [self.body], len(self.body), True
        while more:
            if size > self.max_body:
                raise self._too_large()
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        if size > self.max_body:
            raise self._too_large()
        self.body = b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Await some work, which is cancelled when the client disconnects: `Disconnected`. The body has been read."""
        self.scope[WATCHED] = True
        task, gone = asyncio.create_task(work), asyncio.create_task(self._disconnection())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disconnected
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _disconnection(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass  # the body, again

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body exceeds this server's limit of {self.max_body:,} bytes")

    def replayed(self) -> Receive:
        """A `receive` for an application that reads the body itself, after it was read here."""
        unread: list[Message] = [{"type": "http.request", "body": self.body, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await self.receive()

        return receive

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        try:
            value = _decode(self.body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            value = _decode_odd(self.body) if self.body else {}
        if type(value) is not dict:
            raise InvalidArguments("the body must be a JSON object")
        return value


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name, where some names occur more than once."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + (b"; " if name == b"cookie" else b", ") + value if name in joined else value
    return joined


def _decode_odd(body: bytes) -> Any:
    """Decode what only Python takes for JSON: a large int, half of a surrogate pair."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadJSON("the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadJSON(f"the body is not JSON: invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BadJSON(f"the body is not JSON: {error}") from None
    except ValueError:
        raise BadJSON("the body has a number with too many digits") from None


def bearer_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token in `Authorization: Bearer TOKEN`, if there is one."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def wrong_field(field: str, message: str) -> InvalidArguments:
    """The error about one field of a request."""
    return InvalidArguments(f"{field}: {message}", {field: message})


# Responses.


class ProbeReply(msgspec.Struct, frozen=True):
    """The reply to a probe."""

    status: Literal["ok"] = "ok"


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    """The problem, for programs."""
    message: str
    """The problem, its place and the remedy, for people and models."""
    fields: dict[str, str] | None = None
    """The problem of each field."""


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class HTTPResponse(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Endpoint = Callable[[HTTPRequest], Awaitable[HTTPResponse]]
"""Answers a request of the wire protocol."""


async def send_response(send: Send, response: HTTPResponse, cookies: Iterable[bytes] = ()) -> None:
    """Send a response by ASGI messages."""
    headers = [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
    headers += [*response.headers, *((b"set-cookie", cookie) for cookie in cookies)]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def starlette_response(response: HTTPResponse) -> Response:
    """The same response for Starlette."""
    made = Response(response.body, response.status)
    made.raw_headers += [(b"content-type", response.content_type), *response.headers]
    return made


def json_response(value: Any) -> HTTPResponse:
    """A value as JSON, with status 200."""
    return HTTPResponse(200, to_json(value))


def response_to(error: Exception, what: str) -> HTTPResponse:
    """The response to a request that failed; `what` names the request in the log."""
    if isinstance(error, StateroomError) and error.code is not None:
        fields = error.fields if isinstance(error, InvalidArguments) else None
        return error_response(error.status, error.code, str(error), fields, _headers_for(error))
    logger.error("%s failed", what, exc_info=error)
    if isinstance(error, StateroomError):
        return error_response(500, "environment_error", str(error))
    message = f"{what} failed: unexpected {type(error).__name__}; the server's log has more"
    return error_response(500, "internal_error", message)


def error_response(
    status: int,
    code: str,
    message: str,
    fields: dict[str, str] | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> HTTPResponse:
    """An error as JSON."""
    headers = (RETRY_AFTER, *headers) if status == 503 else headers
    return HTTPResponse(status, to_json(ErrorBody(ErrorDetail(code, message, fields or None))), headers=headers)


def _headers_for(error: Exception) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(error, RateLimited):
        return ((b"retry-after", b"%d" % error.seconds),)
    if isinstance(error, UnknownKey | NotOperator):
        realm = f"stateroom {error.api}" if isinstance(error, NotOperator) else "stateroom"
        return ((b"www-authenticate", f'Bearer realm="{realm}"'.encode()),)
    return ()
