"""The endpoints of threads, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from stateroom.agent import ThreadEnvironment
from stateroom.server.description.operations import ACTING, READING, SLOW, as_json, operation, taken
from stateroom.server.description.schemas import Schema, Wanted
from stateroom.server.description.shapes import body
from stateroom.server.hosted import Hosted
from stateroom.server.parameters import Parameters
from stateroom.server.threads.asked import NewThread, ThreadCancel, ThreadFork, ThreadList, ThreadMessage, ThreadPart


@body
class Thread(TypedDict):
    id: str
    environment: str
    user: str | None
    metadata: dict[str, Any]
    phase: str
    """What its agent is doing: `idle`, `planning`, `executing`, `waiting_feedback`, `done`, `failed`, `cancelled`."""
    question: str | None
    """What its agent waits to be told."""
    revision: int
    created: float
    expires: float
    parent: list[str | int] | None
    """For a fork: the thread and the revision that it branched from."""
    token: str
    """What it takes to use the thread; it lives a day longer than a thread that is left alone."""


@body
class ThreadPage(TypedDict):
    threads: list[Thread]
    next: str | None
    """The `cursor` of the next page. A page may have fewer than were asked for, and not be the last."""


@body
class ThreadItems(TypedDict):
    items: list[dict[str, Any]]
    """Responses items."""
    revisions: list[int]
    """At which revision each of them was said."""
    next: int | None
    """What the next part comes `after`, if there is one."""


@body
class ThreadStanding(TypedDict):
    phase: str
    question: str | None


@body
class ThreadRun(TypedDict):
    output: list[dict[str, Any]]
    """What came to be said, as Responses items."""
    status: Literal["completed", "incomplete", "waiting", "failed", "cancelled"]
    reason: str | None
    """Why it is incomplete."""
    question: str | None
    """What it waits to be told."""
    usage: dict[str, Any] | None
    """The tokens that the model took, as far as it told."""


@body
class ThreadDeleted(TypedDict):
    deleted: str


_KINDS: tuple[Any, ...] = (
    *(ThreadMessage, ThreadFork, ThreadCancel),
    *(Thread, ThreadPage, ThreadItems, ThreadStanding, ThreadRun, ThreadDeleted),
)

TYPES: Wanted = {kind: (kind, "validation") for kind in _KINDS}
"""What the endpoints take and give."""

TOKEN = "thread"
ADMIN = "admin"

SECURITY: Schema = {name: {"type": "http", "scheme": "bearer"} for name in (TOKEN, ADMIN)}

_ID: Schema = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def paths(hosted: Sequence[Hosted], schemas: Mapping[Any, Schema]) -> dict[str, Schema]:
    """The endpoints of threads by path."""
    thread = schemas[Thread]
    create = operation(
        "threads.create",
        "Create a thread: a conversation that is kept here.",
        as_json(thread),
        (*READING, 409, *SLOW),
        description="By default it has no tools; with an `environment` its tools act in it, on a state of the thread's "
        "own. The `token` of the reply is needed for all that follows, as a bearer token.",
        requestBody=taken(_new_thread(hosted, schemas), required=False),
    )
    listing = operation(
        "threads.list",
        "Threads, the newest first, for those who run the server.",
        as_json(schemas[ThreadPage]),
        (401, 403, 422),
        parameters=_query(ThreadList, environment={"enum": [ThreadEnvironment.name, *_stateful(hosted)]}),
        security=[{}, {ADMIN: []}],  # without a token it answers on the server's own machine
    )
    of_one = _OneThread(schemas)
    return {
        "/threads": {"post": create, "get": listing},
        "/threads/{id}": {
            "get": of_one.operation("show", "What is known of the thread, and a new token.", thread),
            "delete": of_one.operation("delete", "Remove the thread at once. Its forks stay.", schemas[ThreadDeleted]),
        },
        "/threads/{id}/items": {
            "get": of_one.operation("items", "The conversation.", schemas[ThreadItems], (404,), _query(ThreadPart)),
        },
        "/threads/{id}/messages": {
            "post": of_one.operation(
                "messages",
                "Say something, or tell an agent that waits what it asked for.",
                schemas[ThreadStanding],
                READING,
                requestBody=taken(schemas[ThreadMessage]),
            )
        },
        "/threads/{id}/run": {"post": of_one.run()},
        "/threads/{id}/fork": {
            "post": of_one.operation(
                "fork",
                "A new thread that goes on from this one, as it is or was at a revision.",
                thread,
                (404, *READING),
                requestBody=taken(schemas[ThreadFork], required=False),
            )
        },
        "/threads/{id}/cancel": {
            "post": of_one.operation(
                "cancel",
                "End what the thread's agent is doing.",
                schemas[ThreadStanding],
                READING,
                requestBody=taken(schemas[ThreadCancel], required=False),
            )
        },
    }


class _OneThread:
    """The endpoints that are about one thread."""

    def __init__(self, schemas: Mapping[Any, Schema]) -> None:
        self.schemas = schemas

    def operation(
        self,
        name: str,
        summary: str,
        reply: Schema,
        statuses: Sequence[int] = (),
        parameters: Sequence[Schema] = (),
        **more: Any,
    ) -> Schema:
        return operation(
            f"threads.{name}",
            summary,
            as_json(reply),
            (*ACTING, 422, *statuses),
            parameters=[_ID, *parameters],
            security=[{TOKEN: []}],
            **more,
        )

    def run(self) -> Schema:
        made = self.operation(
            "run",
            "Let the server's model answer what is new.",
            self.schemas[ThreadRun],
            (404, 502, *READING, *SLOW),
            description="With `Accept: text/event-stream` each item is an event as it comes, and the last event, "
            "`end`, has the rest; `error` is the last one of a run that failed on its way. The run goes on when the "
            "client leaves. While somebody runs a thread nobody else can: 503.",
            requestBody=taken({"type": "object", "additionalProperties": False}, required=False),
        )
        made["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        return made


def _new_thread(hosted: Sequence[Hosted], schemas: Mapping[Any, Schema]) -> Schema:
    """What a new thread takes: without tools, or of an environment, whose tasks are of its own type."""
    whole = NewThread.model_json_schema()
    properties = {name: part for name, part in whole["properties"].items() if name not in ("environment", "task")}
    plain = {"environment": {"const": ThreadEnvironment.name}, **properties}
    forms = [{"title": ThreadEnvironment.name, "type": "object", "properties": plain, "additionalProperties": False}]
    for name in _stateful(hosted):
        own = {"environment": {"const": name}, "task": schemas[name, "task"] or {"type": "object"}, **properties}
        needed = {"required": ["environment", "task"], "additionalProperties": False}
        forms.append({"title": name, "type": "object", "properties": own, **needed})
    return {"anyOf": forms}


def _stateful(hosted: Sequence[Hosted]) -> list[str]:
    """The environments that threads can be of."""
    return [one.environment.name for one in hosted if not one.stateless]


def _query(parameters: type[Parameters], **known: Schema) -> list[Schema]:
    """The parameters that stand in the URL; of those that are `known`, more can be said than their types do."""
    properties = parameters.model_json_schema()["properties"] | known
    return [
        {"name": name, "in": "query", "schema": schema.get("anyOf", [schema])[0]} for name, schema in properties.items()
    ]
