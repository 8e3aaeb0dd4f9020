"""The parts that the description of any endpoint is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stateroom.server.description.schemas import Schema

ALWAYS = (500, 503)
"""What every endpoint may answer."""
READING = (400, 413, 422)
"""What one may answer that reads a body."""
ACTING = (401, 409, 410)
"""What one may answer that uses a session."""
SLOW = (504,)
"""What one may answer that runs an author's code."""


def operation(operation_id: str, summary: str, reply: Schema, statuses: Sequence[int], **more: Any) -> Schema:
    """An endpoint that replies so, or with one of these statuses."""
    return {
        "operationId": operation_id,
        "summary": summary,
        **more,
        "responses": {"200": {"description": "It went well.", "content": reply}, **errors({*statuses, *ALWAYS})},
    }


def errors(statuses: Iterable[int]) -> Schema:
    """The replies with these statuses."""
    return {str(status): {"$ref": f"#/components/responses/error_{status}"} for status in sorted(statuses)}


def as_json(schema: Schema) -> Schema:
    """A body of JSON."""
    return {"application/json": {"schema": schema}}


def taken(schema: Schema, *, required: bool = True) -> Schema:
    """What an endpoint takes."""
    return {"content": as_json(schema), "required": required}
