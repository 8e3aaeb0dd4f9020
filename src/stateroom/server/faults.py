"""Everything that can go wrong, as a reply: a status for machines, and a code and a message that say what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from stateroom import errors
from stateroom.server.http import BadJSON, Reply
from stateroom.session import Code
from stateroom.state import to_json

logger = logging.getLogger(__name__)

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
"""The status of a failed call; the body is for the model, whatever the status."""

FAULTS: dict[type[Exception], tuple[int, str]] = {
    BadJSON: (400, "invalid_json"),
    errors.InvalidArguments: (422, "invalid_arguments"),
    errors.BadTask: (422, "invalid_task"),
    errors.Unauthorized: (401, "unauthorized"),
    errors.Forbidden: (403, "forbidden"),
    errors.RateLimited: (429, "rate_limited"),
    errors.NotFound: (404, "not_found"),
    errors.UnknownRevision: (404, "unknown_revision"),
    errors.UnknownSession: (410, "unknown_session"),
    errors.SessionExpired: (410, "session_expired"),
    errors.SessionClosed: (410, "session_closed"),
    errors.SessionSealed: (409, "session_sealed"),
    errors.SessionLeased: (503, "session_leased"),
    errors.CannotFork: (409, "cannot_fork"),
    errors.CannotRewind: (409, "cannot_rewind"),
    errors.Conflict: (409, "conflict"),
    errors.InvalidMove: (409, "invalid_move"),
    errors.SessionError: (409, "session_error"),
    errors.SchemaChanged: (409, "schema_changed"),
    errors.TooLarge: (413, "too_large"),
    errors.ContextOverflow: (413, "context_overflow"),
    errors.ModelFailed: (502, "model_failed"),
    errors.ModelUnavailable: (503, "model_unavailable"),
    errors.JudgeFailed: (500, "judge_failed"),
    errors.Busy: (503, "busy"),
    errors.StoreFull: (503, "busy"),
    errors.StoreUnavailable: (503, "store_unavailable"),
    errors.TimedOut: (504, "timeout"),
}
"""Status and code by error; an error that is not here is one of the server's or the environment's own: 500."""

RETRY_AFTER = (b"retry-after", b"1")
CHALLENGE = (b"www-authenticate", b'Bearer realm="stateroom"')


def fault(error: Exception, what: str) -> Reply:
    """The reply to a request that failed; `what` names it in the log."""
    for kind in type(error).__mro__:
        if kind in FAULTS:
            status, code = FAULTS[kind]
            fields = error.fields if isinstance(error, errors.InvalidArguments) else None
            reply = error_reply(status, code, str(error), fields)
            return replace(reply, headers=(*reply.headers, *_headers_for(error)))
    logger.error("%s failed", what, exc_info=error)
    if isinstance(error, errors.StateroomError):
        return error_reply(500, "environment_error", str(error))
    return error_reply(
        500, "internal_error", f"{what} failed: unexpected {type(error).__name__}; the server's log has more"
    )


def _headers_for(error: Exception) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(error, errors.RateLimited):
        return ((b"retry-after", b"%d" % error.seconds),)
    return (CHALLENGE,) if isinstance(error, errors.UnknownKey) else ()


def wrong_method(path: str, allowed: Iterable[str]) -> Reply:
    """The reply to a request whose method a path does not answer."""
    methods = sorted(allowed)
    reply = error_reply(405, "method_not_allowed", f"{path} answers {' and '.join(methods)} only")
    return replace(reply, headers=((b"allow", ", ".join(methods).encode()),))


def wrong_field(field: str, message: str) -> errors.InvalidArguments:
    """The error about one field of a request."""
    return errors.InvalidArguments(f"{field}: {message}", {field: message})


def error_reply(status: int, code: str, message: str, fields: dict[str, str] | None = None) -> Reply:
    """An error as JSON."""
    error: dict[str, Any] = {"code": code, "message": message, **({"fields": fields} if fields else {})}
    return Reply(status, to_json({"error": error}), headers=(RETRY_AFTER,) if status == 503 else ())
