"""The endpoints of threads, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from stateroom.agent import ThreadEnvironment
from stateroom.server.description.schemas import (
    ACTING,
    ADMIN,
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
from stateroom.server.environment import ServedEnvironment
from stateroom.server.threads import NewThread, ThreadCancel, ThreadFork, ThreadList, ThreadMessage, ThreadPart


@body
class ThreadBody(TypedDict):
    id: str
    environment: str
    user: str | None
    metadata: dict[str, Any]
    phase: str
    """The phase of its agent: `idle`, `planning`, `executing`, `waiting_feedback`, `done`, `failed`, `cancelled`."""
    question: str | None
    """The question that its agent waits on."""
    revision: int
    created: float
    expires: float
    parent: list[str | int] | None
    """For a fork: the thread and the revision that it branched from."""
    token: str
    """The token to use the thread; it lives a day longer than a thread that is not used."""


@body
class ThreadListReply(TypedDict):
    threads: list[ThreadBody]
    next: str | None
    """The `cursor` of the next page. A page may have fewer threads than its limit, and not be the last."""


@body
class ThreadItemsReply(TypedDict):
    items: list[dict[str, Any]]
    """Responses items."""
    revisions: list[int]
    """The revision of each item."""
    next: int | None
    """The `after` of the next part, if there is one."""


@body
class AgentStatusBody(TypedDict):
    phase: str
    question: str | None


@body
class ThreadRunReply(TypedDict):
    output: list[dict[str, Any]]
    """New Responses items."""
    status: Literal["completed", "incomplete", "waiting", "failed", "cancelled"]
    reason: str | None
    """Why it is incomplete."""
    question: str | None
    """The question that it waits on."""
    usage: dict[str, Any] | None
    """The number of tokens, as far as the model reports it."""


@body
class ThreadDeleteReply(TypedDict):
    deleted: str


_KINDS: tuple[Any, ...] = (
    *(ThreadMessage, ThreadFork, ThreadCancel),
    *(ThreadBody, ThreadListReply, ThreadItemsReply, AgentStatusBody, ThreadRunReply, ThreadDeleteReply),
)

TYPES: Wanted = {kind: (kind, "validation") for kind in _KINDS}
"""The bodies of requests and replies."""

TOKEN = "thread"

SECURITY: Schema = {name: {"type": "http", "scheme": "bearer"} for name in (TOKEN, ADMIN)}


def paths(environments: Sequence[ServedEnvironment], schemas: Mapping[Any, Schema]) -> dict[str, Schema]:
    """The endpoints of threads by path."""
    thread = schemas[ThreadBody]
    create = operation(
        "threads.create",
        "Create a thread: a conversation that the server keeps.",
        as_json(thread),
        (*READING, 409, *SLOW),
        description="By default it has no tools; with an `environment` its tools act in it, on a state of the thread's "
        "own. All other requests need the `token` of the reply, as a bearer token.",
        requestBody=taken(_new_thread(environments, schemas), required=False),
    )
    listing = operation(
        "threads.list",
        "Threads, the newest first, for the operator of the server.",
        as_json(schemas[ThreadListReply]),
        (401, 403, 422),
        parameters=query(ThreadList, environment={"enum": [ThreadEnvironment.name, *_stateful(environments)]}),
        security=OPERATOR,
    )
    one = _ThreadPaths(schemas)
    return {
        "/threads": {"post": create, "get": listing},
        "/threads/{id}": {
            "get": one.operation("show", "The thread, with a new token.", thread),
            "delete": one.operation("delete", "Remove the thread at once. Its forks stay.", schemas[ThreadDeleteReply]),
        },
        "/threads/{id}/items": {
            "get": one.operation("items", "The conversation.", schemas[ThreadItemsReply], (404,), query(ThreadPart)),
        },
        "/threads/{id}/messages": {
            "post": one.operation(
                "messages",
                "Add a message, or answer the question of an agent that waits.",
                schemas[AgentStatusBody],
                READING,
                requestBody=taken(schemas[ThreadMessage]),
            )
        },
        "/threads/{id}/run": {"post": one.run()},
        "/threads/{id}/fork": {
            "post": one.operation(
                "fork",
                "A new thread that continues this one, from its end or from a revision.",
                thread,
                (404, *READING),
                requestBody=taken(schemas[ThreadFork], required=False),
            )
        },
        "/threads/{id}/cancel": {
            "post": one.operation(
                "cancel",
                "Cancel the work of the thread's agent.",
                schemas[AgentStatusBody],
                READING,
                requestBody=taken(schemas[ThreadCancel], required=False),
            )
        },
    }


class _ThreadPaths:
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
            parameters=[ID, *parameters],
            security=[{TOKEN: []}],
            **more,
        )

    def run(self) -> Schema:
        made = self.operation(
            "run",
            "Let the server's model answer the new messages.",
            self.schemas[ThreadRunReply],
            (404, 502, *READING, *SLOW),
            description="With `Accept: text/event-stream` each item is an event as it comes, and the last event, "
            "`end`, has the rest; `error` is the last event of a run that fails later. The run goes on when the "
            "client disconnects. While a thread runs, another run gets 503.",
            requestBody=taken({"type": "object", "additionalProperties": False}, required=False),
        )
        made["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        return made


def _new_thread(environments: Sequence[ServedEnvironment], schemas: Mapping[Any, Schema]) -> Schema:
    """The body of a new thread: without tools, or of an environment, with a task of its type."""
    whole = NewThread.model_json_schema()
    properties = {name: part for name, part in whole["properties"].items() if name not in ("environment", "task")}
    plain = {"environment": {"const": ThreadEnvironment.name}, **properties}
    forms = [{"title": ThreadEnvironment.name, "type": "object", "properties": plain, "additionalProperties": False}]
    for name in _stateful(environments):
        own = {"environment": {"const": name}, "task": schemas[name, "task"] or {"type": "object"}, **properties}
        needed = {"required": ["environment", "task"], "additionalProperties": False}
        forms.append({"title": name, "type": "object", "properties": own, **needed})
    return {"anyOf": forms}


def _stateful(environments: Sequence[ServedEnvironment]) -> list[str]:
    """The environments that can have threads."""
    return [one.name for one in environments if not one.stateless]
