"""Responses: a body with its status, and every error as JSON with a code for programs and a message for people."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import msgspec

from stateroom import errors
from stateroom.server.request import HTTPRequest, Send
from stateroom.session import Code
from stateroom.state import to_json

logger = logging.getLogger(__name__)

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


class ProbeReply(msgspec.Struct, frozen=True):
    """The reply to a probe."""

    status: Literal["ok"] = "ok"


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    """The problem, for programs."""
    message: str
    """What is wrong, where, and what to do, for people and models."""
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


def json_response(value: Any) -> HTTPResponse:
    """A value as JSON, with status 200."""
    return HTTPResponse(200, to_json(value))


def response_to(error: Exception, what: str) -> HTTPResponse:
    """The response to a request that failed; `what` names the request in the log."""
    if isinstance(error, errors.StateroomError) and error.code is not None:
        fields = error.fields if isinstance(error, errors.InvalidArguments) else None
        return error_response(error.status, error.code, str(error), fields, _headers_for(error))
    logger.error("%s failed", what, exc_info=error)
    if isinstance(error, errors.StateroomError):
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
    if isinstance(error, errors.RateLimited):
        return ((b"retry-after", b"%d" % error.seconds),)
    return ((b"www-authenticate", b'Bearer realm="stateroom"'),) if isinstance(error, errors.UnknownKey) else ()
