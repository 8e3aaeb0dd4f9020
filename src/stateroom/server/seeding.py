"""What a request that seeds a session asks for: a name, and what its chance and clock come from."""

from __future__ import annotations

from typing import Any

from stateroom.errors import BadTask
from stateroom.server.faults import wrong_field
from stateroom.server.http import Request

FARTHEST = 2.0**40
"""Seconds since 1970 at which a session's clock may start: longer than anybody will need."""

LONGEST_NAME = 200
"""Characters that a client's own name for a session may have, and that are shown of a name that nothing has."""


def named(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The body, with the name that our own runner gives the session: in a header, which other servers overlook."""
    name = request.header(b"stateroom-session")
    return body if name is None else {**body, "resources_session_id": name.decode("latin-1")}


def name_and_row(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name that a client gives the session that it seeds, and the task row."""
    name = body["resources_session_id"]
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise wrong_field("resources_session_id", f"should be a text of 1 to {LONGEST_NAME} characters")
    row = body.get("task_data", {key: value for key, value in body.items() if key != "resources_session_id"})
    if not isinstance(row, dict):
        raise wrong_field("task_data", "should be the task row, an object")
    return name, row


def seed_of(request: Request) -> int | None:
    """Our own runner says what the session's chance comes from."""
    value = request.header(b"stateroom-seed")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 20:
        raise BadTask("the header Stateroom-Seed: should be a whole number")
    return int(value)


def began_of(request: Request) -> float | None:
    """Our own runner says when the session's clock starts."""
    value = request.header(b"stateroom-began")
    if value is None:
        return None
    try:
        began = float(value)
    except ValueError:
        began = -1.0
    if not 0 <= began <= FARTHEST:
        raise BadTask("the header Stateroom-Began: should be seconds since 1970")
    return began
