"""The endpoints of the admin API, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from typing_extensions import TypedDict

from stateroom.server import admin_actions as actions
from stateroom.server.admin import DiffRange, LogRange, LogStart, SessionList, StateAt, StreamStart
from stateroom.server.api import Nothing, Parameters
from stateroom.server.description.schemas import (
    ID,
    OPERATOR,
    READING,
    SLOW,
    Schema,
    Wanted,
    as_json,
    body,
    operation,
    query,
    taken,
)
from stateroom.server.description.threads import AgentStatusBody
from stateroom.server.environment import ServedEnvironment


@body
class ForkPoint(TypedDict):
    session: str
    revision: int


@body
class HeadBody(TypedDict):
    """A session, as it is listed."""

    id: str
    environment: str
    owner: str
    status: Literal["live", "closed", "expired"]
    phase: str | None
    """The phase of its agent."""
    reward: float | None
    revision: int
    created: float
    expires: float
    parent: ForkPoint | None


@body
class SessionsReply(TypedDict):
    sessions: list[HeadBody]
    next: str | None
    """The `cursor` of the next page."""


@body
class SessionBody(HeadBody):
    children: list[ForkPoint]
    sealed: bool
    verdict: dict[str, Any] | None


@body
class ChangeBody(TypedDict):
    """A change of a state."""

    place: list[str | int]
    """Keys of dicts are texts, and indices of lists are numbers."""
    kind: Literal["changed", "new", "gone"]
    before: Any
    after: Any
    text: str
    """The line for people; changes that one operation made share it."""


@body
class EntryBody(TypedDict):
    """An entry of a log; other fields depend on its kind."""

    revision: int
    kind: str
    at: float
    call_id: str | None
    changes: list[ChangeBody]


@body
class LogReply(TypedDict):
    entries: list[EntryBody]
    """In order, whichever way the log is read."""
    next: int | None
    """The `after`, or `before`, of the next page. A page of a search may be empty, and not be the last."""
    pruned: list[list[int]]
    """The first and the last revision of each part that was pruned here."""


@body
class KindsReply(TypedDict):
    revision: int
    """The newest."""
    kinds: list[list[str | int]]
    """The kind, the first and the last revision of neighbours of one kind. What is missing was pruned."""


@body
class StateReply(TypedDict):
    revision: int
    state: Any


@body
class DiffReply(TypedDict):
    """The request's own `from`, `to` and `with`, and what differs."""

    differences: list[ChangeBody]


@body
class LineageReply(TypedDict):
    ancestors: list[HeadBody]
    """The root first."""
    session: HeadBody
    descendants: list[HeadBody]
    """Parents before their forks."""
    cut: bool
    """Whether there are more."""


@body
class EnvironmentsReply(TypedDict):
    environments: list[dict[str, Any]]
    """Each with its `tools`, `task_schema`, `state_schema`, `examples`, and whether a `model` can act."""


@body
class CallReply(TypedDict):
    ok: bool
    output: Any
    """What a model would read, also where the call failed."""
    revision: int


@body
class UserAnswer(TypedDict):
    reply: str | None
    revision: int


@body
class VerdictReply(TypedDict):
    verdict: dict[str, Any]
    revision: int


@body
class ForksReply(TypedDict):
    sessions: list[dict[str, str]]
    """The `id` and the `token` of each."""


@body
class CheckpointReply(TypedDict):
    name: str
    revision: int


@body
class StepsReply(TypedDict):
    steps: int
    """How many there were, up to those asked for."""
    revision: int


@body
class DeletedReply(TypedDict):
    deleted: str


class _Reading(NamedTuple):
    name: str
    summary: str
    reply: Any
    """None: events."""
    query: type[Parameters] = Nothing
    statuses: Sequence[int] = ()


_READINGS = {
    "/environments": _Reading("environments", "The served environments.", EnvironmentsReply),
    "/stream": _Reading("stream", "Logs of several sessions as they grow, and new sessions.", None, StreamStart),
    "/sessions": _Reading("sessions", "A page of sessions.", SessionsReply, SessionList),
    "/sessions/{id}": _Reading("show", "A session, its forks and its verdict.", SessionBody, Nothing, (410,)),
    "/sessions/{id}/log": _Reading("log", "Entries of its log, with changes.", LogReply, LogRange, (404, 410)),
    "/sessions/{id}/log/kinds": _Reading("kinds", "The kinds of all its entries.", KindsReply, Nothing, (410,)),
    "/sessions/{id}/log/stream": _Reading("follow", "Its log as it grows, as events.", None, LogStart, (410,)),
    "/sessions/{id}/state": _Reading("state", "Its state at a revision.", StateReply, StateAt, (404, 410)),
    "/sessions/{id}/diff": _Reading("diff", "What differs between two states.", DiffReply, DiffRange, (404, 410)),
    "/sessions/{id}/lineage": _Reading("lineage", "Its ancestors and descendants.", LineageReply, Nothing, (410,)),
}

_ACTIONS: dict[str, tuple[str, Any, Any]] = {
    "call": ("Call a tool.", actions.ToolCall, CallReply),
    "reply": ("Let the environment's user answer a message.", actions.Message, UserAnswer),
    "verify": ("Verify the episode, which seals the session.", actions.Verification, VerdictReply),
    "edit": ("Change the state by hand.", actions.StateEdit, HeadBody),
    "fork": ("Fork the session; with an edit, each fork begins with it.", actions.NewForks, ForksReply),
    "rewind": ("Make the state what it was at a revision.", actions.Rewind, HeadBody),
    "undo": ("Take back the last steps.", actions.Steps, StepsReply),
    "redo": ("Do again what was undone last.", actions.Steps, StepsReply),
    "checkpoint": ("Name the current state.", actions.NewCheckpoint, CheckpointReply),
    "answer": ("Answer the question of an agent that waits.", actions.Answer, AgentStatusBody),
    "cancel": ("Cancel the work of an agent.", actions.Cancellation, AgentStatusBody),
    "close": ("Close the session.", actions.Action, HeadBody),
}
"""By name: a summary, and the bodies of the request and of the reply."""

_BODIES = {reading.reply for reading in _READINGS.values() if reading.reply}
_BODIES |= {kind for _, *kinds in _ACTIONS.values() for kind in kinds} | {actions.NewSession, DeletedReply}

TYPES: Wanted = {kind: (kind, "validation") for kind in sorted(_BODIES, key=lambda kind: str(kind.__name__))}
"""The bodies of requests and replies."""

_EVENTS: Schema = {"text/event-stream": {"schema": {"type": "string"}}}
_CHANGING = (401, 403, 404, 409, 410, 502, *READING, *SLOW)


def paths(environments: Sequence[ServedEnvironment], schemas: Mapping[Any, Schema]) -> dict[str, Schema]:
    """The endpoints by path."""
    found = {f"/admin{path}": {"get": _read(path, reading, schemas)} for path, reading in _READINGS.items()}
    seed = taken({"allOf": [schemas[actions.NewSession], {"anyOf": _rows(environments, schemas)}]})
    found["/admin/sessions"]["post"] = _act("seed", "Seed a session by hand.", seed, schemas[HeadBody])
    deleted = as_json(schemas[DeletedReply])
    found["/admin/sessions/{id}"]["delete"] = operation(
        "admin.delete", "Delete a session at once.", deleted, (401, 403, 410, 422), parameters=[ID], security=OPERATOR
    )
    for name, (summary, taking, giving) in _ACTIONS.items():
        described = _act(name, summary, taken(schemas[taking]), schemas[giving], parameters=[ID])
        found[f"/admin/sessions/{{id}}/{name}"] = {"post": described}
    return found


def _read(path: str, reading: _Reading, schemas: Mapping[Any, Schema]) -> Schema:
    reply = as_json(schemas[reading.reply]) if reading.reply else _EVENTS
    parameters = [*([ID] if "{id}" in path else []), *query(reading.query)]
    statuses = (401, 403, 422, *reading.statuses)
    return operation(
        f"admin.{reading.name}", reading.summary, reply, statuses, parameters=parameters, security=OPERATOR
    )


def _act(name: str, summary: str, request: Schema, reply: Schema, **more: Any) -> Schema:
    return operation(
        f"admin.{name}", summary, as_json(reply), _CHANGING, requestBody=request, security=OPERATOR, **more
    )


def _rows(environments: Sequence[ServedEnvironment], schemas: Mapping[Any, Schema]) -> list[Schema]:
    """The environments that have sessions, each with the rows of its tasks."""
    return [
        {"properties": {"environment": {"const": one.name}, "row": schemas[one.name, "task"] or {"type": "object"}}}
        for one in environments
        if not one.stateless
    ] or [{}]
