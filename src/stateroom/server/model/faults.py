"""What goes wrong, in the shape in which OpenAI's clients expect it."""

from __future__ import annotations

import logging

from stateroom import errors
from stateroom.server.faults import RETRY_AFTER
from stateroom.server.http import Reply
from stateroom.state import to_json

logger = logging.getLogger(__name__)

FAULTS: dict[type[Exception], tuple[int, str, str | None]] = {
    errors.InvalidArguments: (400, "invalid_request_error", None),
    errors.Forbidden: (403, "invalid_request_error", "forbidden"),
    errors.NotFound: (404, "invalid_request_error", "not_found"),
    errors.TooLarge: (413, "invalid_request_error", "too_large"),
    errors.ModelFailed: (500, "server_error", "model_failed"),
    errors.ModelUnavailable: (503, "server_error", "model_unavailable"),
    errors.Busy: (503, "server_error", "busy"),
}
"""Status, type and code by error; an error that is not here is one of the server's own: 500."""

HEADERS = {500: ((b"x-should-retry", b"false"),), 503: (RETRY_AFTER,)}
"""Headers by status: OpenAI's clients see in them that the same request would fail again, or when to try it."""


class UnknownModel(errors.NotFound):
    """The model is not the one that is served."""


def fault(error: Exception, what: str) -> Reply:
    """The reply to a request that failed; `what` names it in the log."""
    if isinstance(error, UnknownModel):
        return error_reply(404, "invalid_request_error", "model_not_found", str(error), "model")
    for kind in type(error).__mro__:
        if kind in FAULTS:
            field = next(iter(error.fields), None) if isinstance(error, errors.InvalidArguments) else None
            return error_reply(*FAULTS[kind], str(error), field)
    logger.error("%s failed", what, exc_info=error)
    said = f"{what} failed: unexpected {type(error).__name__}; the server's log has more"
    return error_reply(500, "server_error", "internal_error", said)


def error_reply(status: int, kind: str, code: str | None, message: str, field: str | None = None) -> Reply:
    """An error as JSON."""
    body = to_json({"error": {"message": message, "type": kind, "param": field, "code": code}})
    return Reply(status, body, headers=HEADERS.get(status, ()))
