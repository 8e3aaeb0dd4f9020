"""The OpenAPI document of a server: every endpoint, what it takes, and everything that it may reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, get_type_hints

from stateroom.environment import Tool
from stateroom.server.description import shapes, threads
from stateroom.server.description.operations import ACTING, READING, SLOW, as_json, errors, operation, taken
from stateroom.server.description.schemas import Schema, Wanted, schemas_of
from stateroom.server.faults import FAULTS, STATUS_OF_RESULT
from stateroom.server.hosted import Hosted

ABOUT = """
### The session
Seeding gives a cookie, and every reply gives it again, errors included. Send it with every request that follows. The
`seed_key` in the reply to seeding lets whoever seeded the session seed it again: keep it from the model.

### Calls that are sent again
Give a tool call an id of your own in the header `Idempotency-Key`. In one session the same id gives the recorded
result, and nothing is done twice.

### MCP
The tools are also served over MCP, as streamable HTTP at `mcp` beside them. The reply to seeding says where, and with
which header (`X-NeMo-Gym-Session-Token`) a client reaches its session.

### Threads
A thread is a conversation that is kept here: say something in it, and let the server's model answer. `POST /threads`
gives a `token`; send it as `Authorization: Bearer TOKEN`. Show the thread to get a new one in time.

### Errors
An error is `{"error": {"code": …, "message": …}}`, with a status for machines. Where single fields are wrong, `fields`
says what is wrong with which. A model may read every error of a tool call.

### Other
A path may begin with `/ng-rollout/<id>`, by which clients tell their rollouts apart in logs. Those who run the server
find its sessions, with their logs and states, under `/admin`.
"""

ERRORS = {
    400: "The body is not JSON, or the tool says in its own words why it will not do this.",
    401: "There is no session token, or one that was not made here or is out of date. "
    "Seed a session, and send the cookie that it gives; or create a thread, and send its token.",
    403: "This is for those who run the server.",
    404: "There is no tool, or revision, of this name; or nobody who answers in threads.",
    409: "The session has its verdict, the client has a session already, somebody else wrote first, or the agent "
    "of a thread is doing something else.",
    410: "The session was closed, has expired, or is not in the store. Seed another one.",
    413: "The body, or the state, is larger than it may be.",
    422: "The arguments or the task do not fit; `fields` says what is wrong with which.",
    429: "The API key has had as many sessions or calls as it may in this minute. "
    "Try again after `Retry-After` seconds.",
    500: "The environment or the server failed by mistake. The server's log has more.",
    502: "The model that plays the user, or answers in threads, gave an answer that is of no use.",
    503: "As much is going on as may, or the store does not answer. Try again after `Retry-After` seconds.",
    504: "It took longer than it may.",
}
"""What a status means."""

UNEXPECTED = ("environment_error", "internal_error")
"""The codes of errors that are the server's or the environment's own."""

KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The call's id. The same id again gives the recorded result, and runs nothing.",
    "schema": {"type": "string", "pattern": "^[!-~]+$"},
}

API_KEY = "key"
"""The name of the security scheme of API keys."""

LUCK: list[Schema] = [
    {
        "name": "Stateroom-Seed",
        "in": "header",
        "description": "What the session's chance comes from; by default something random.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    {
        "name": "Stateroom-Began",
        "in": "header",
        "description": "When the session's clock starts, in seconds since 1970; by default now.",
        "schema": {"type": "number", "minimum": 0, "maximum": 2**40},
    },
    {
        "name": "Stateroom-Session",
        "in": "header",
        "description": "A name for the session, as `resources_session_id` is one.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    },
]

COOKIE: Schema = {
    "description": "The session, for all requests that follow.",
    "required": True,
    "schema": {"type": "string"},
}


def document(hosted: Sequence[Hosted]) -> Schema:
    """The OpenAPI document of a server with these environments."""
    wanted: Wanted = {**{kind: (kind, "validation") for kind in shapes.ALL}, **threads.TYPES}
    for one in hosted:
        wanted |= _types(one)
    schemas, definitions = schemas_of(wanted)
    paths: dict[str, Schema] = {}
    for one in hosted:
        paths |= _Endpoints(one, schemas).paths()
    paths |= threads.paths(hosted, schemas)
    if any(one.keys for one in hosted):
        _ask_for_keys(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(one.environment.name for one in hosted),
            "version": version("stateroom"),
            "description": f"{_introduction(hosted)}\n\n{ABOUT.strip()}",
        },
        "tags": [{"name": one.environment.name, "description": _said_of(one)} for one in hosted],
        "paths": paths | _server_paths(schemas),
        "components": {
            "schemas": definitions,
            "responses": {f"error_{status}": _error(status, schemas[shapes.Error]) for status in ERRORS},
            "securitySchemes": threads.SECURITY
            | {API_KEY: {"type": "http", "scheme": "bearer"}}
            | {
                f"{one.environment.name}.session": {"type": "apiKey", "in": "cookie", "name": one.cookie_name}
                for one in hosted
            },
        },
    }


def _ask_for_keys(paths: Mapping[str, Schema]) -> None:
    """Describe what API keys change: without a session, each request to act needs one, and all count."""
    for path in paths.values():
        for method, described in path.items():
            described["responses"] |= errors((401, 429))
            if method == "post":
                described["security"] = [one or {API_KEY: []} for one in described.get("security", [{}])]


def _types(hosted: Hosted) -> Wanted:
    """The types of an environment that go over the wire."""
    name = hosted.environment.name
    wanted: Wanted = {(name, "task"): (hosted.environment.task_type, "validation")}
    for tool in hosted.environment.tools.values():
        wanted[name, tool.name, "arguments"] = (tool.arguments, "validation")
        wanted[name, tool.name, "result"] = (_returned(tool), "serialization")
    return wanted


def _returned(tool: Tool) -> Any:
    """The type that a tool says it returns; anything, where that cannot be read."""
    try:
        return get_type_hints(tool.procedure.function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


def _introduction(hosted: Sequence[Hosted]) -> str:
    if len(hosted) == 1:
        return _said_of(hosted[0])
    return "\n".join(f"- **{one.environment.name}**: {_said_of(one).partition(chr(10))[0]}" for one in hosted)


def _said_of(hosted: Hosted) -> str:
    return cleandoc(type(hosted.environment).__doc__ or "")


class _Endpoints:
    """The endpoints of one environment, in the order of an episode."""

    def __init__(self, hosted: Hosted, schemas: Mapping[Any, Schema]) -> None:
        self.hosted = hosted
        self.schemas = schemas
        self.name = hosted.environment.name
        self.task = schemas[self.name, "task"] or {"type": "object"}
        token: Schema = {f"{self.name}.session": []}
        self.optional: list[Schema] = [{}, token]
        self.needed = self.optional if hosted.stateless else [token]
        self.acting = (401,) if hosted.stateless else ACTING
        """A session without a state cannot be lost, nor can two calls in it meet."""

    def paths(self) -> dict[str, Schema]:
        paths = {
            "/seed_session": {"post": self._seed_session()},
            **{f"/{tool.name}": {"post": self._tool(tool)} for tool in self.hosted.environment.tools.values()},
            **({} if self.hosted.environment.replying is None else {"/reply": {"post": self._reply()}}),
            "/verify": {"post": self._verify()},
            "/close_session": {"post": self._close_session()},
            "/aggregate_metrics": {"post": self._aggregate_metrics()},
            "/reverify_mode": {"get": self._reverify_mode()},
            "/reset": {"post": self._reset()},
            "/step": {"post": self._step()},
            "/close": {"post": self._close()},
            "/": {"get": self._root()},
        }
        return {self.hosted.prefix + path: item for path, item in paths.items()}

    def _operation(self, name: str, summary: str, reply: Schema, statuses: Sequence[int], **more: Any) -> Schema:
        return operation(f"{self.name}.{name}", summary, as_json(reply), statuses, tags=[self.name], **more)

    def _seed_session(self) -> Schema:
        row = {"allOf": [self.task, self.schemas[shapes.Seeding]]}
        named = {"allOf": [self.schemas[shapes.NamedSeeding], {"properties": {"task_data": self.task}}]}
        return self._seeding(
            "seed_session",
            "Seed a session.",
            self.schemas[shapes.SeedReply],
            (409, 410, *READING, *SLOW),
            description="The body is the whole task row, and the cookie of the reply is the session. With the cookie "
            "of a live session it is refused, for it may be the model that asks: who seeded that session may seed it "
            "again with the `seed_key` of the reply in the row, and a new session takes its place. A client may give "
            "a session a name of its own, `resources_session_id`; to seed that name again is to join it.",
            requestBody=taken({"anyOf": [row, named]}),
        )

    def _seeding(self, *about: Any, **more: Any) -> Schema:
        """An operation whose reply hands out a session's token."""
        operation = self._operation(*about, **more, parameters=LUCK, security=self.optional)
        operation["responses"]["200"]["headers"] = {"Set-Cookie": COOKIE}
        return operation

    def _tool(self, tool: Tool) -> Schema:
        said: str = tool.definition["description"]
        needed = any(field.is_required() for field in tool.arguments.model_fields.values())
        return self._operation(
            tool.name,
            said.partition("\n")[0],
            self.schemas[self.name, tool.name, "result"],
            (*READING, *self.acting, *SLOW),
            description=said,
            **{"x-stateroom-effect": tool.effect},
            parameters=[KEY],
            requestBody=taken(self.schemas[self.name, tool.name, "arguments"], required=needed),
            security=self.needed,
        )

    def _reply(self) -> Schema:
        return self._operation(
            "reply",
            "Let the user answer a message of the agent's.",
            self.schemas[shapes.Replied],
            (404, 502, *READING, *self.acting, *SLOW),
            description="For a message without tool calls: the user's answer is the next thing that the model is told. "
            "It needs an id, by which it is no tool that a model could call; without one it is not there.",
            parameters=[{**KEY, "required": True}],
            requestBody=taken(self.schemas[shapes.Said]),
            security=self.needed,
        )

    def _verify(self) -> Schema:
        return self._operation(
            "verify",
            "Judge the episode.",
            self.schemas[shapes.Judged],
            (*READING, *self.acting, *SLOW),
            description="The body is the task row, and what the model answered as `response`. The reply has the same "
            "keys, the `reward`, and what else the verifier found. The verdict seals the session: nothing can be "
            "changed any more, and to verify it again gives the same verdict.",
            requestBody=taken({"allOf": [self.task, self.schemas[shapes.Judging]]}),
            security=self.needed,
        )

    def _close_session(self) -> Schema:
        return self._operation(
            "close_session",
            "Close the session.",
            self.schemas[shapes.Closed],
            (*READING, 401, 409, 410),
            description="It can no longer be used. To close it twice is fine.",
            requestBody=taken(self.schemas[shapes.Closing]),
            security=self.optional,
        )

    def _aggregate_metrics(self) -> Schema:
        return self._operation(
            "aggregate_metrics",
            "What the rewards of many episodes come to, over all and task by task.",
            self.schemas[shapes.Aggregate],
            READING,
            requestBody=taken(self.schemas[shapes.Episodes]),
        )

    def _reverify_mode(self) -> Schema:
        summary = "Whether an episode can be judged again from its row alone."
        return self._operation("reverify_mode", summary, self.schemas[shapes.ReverifyMode], ())

    def _reset(self) -> Schema:
        return self._seeding(
            "reset",
            "Seed a session, Gymnasium-style.",
            self.schemas[shapes.Reset],
            (409, *READING, *SLOW),
            requestBody=taken(self.task),
        )

    def _step(self) -> Schema:
        return self._operation(
            "step",
            "Make the tool calls of a response; one without any is answered by the user, or ends the episode.",
            self.schemas[shapes.Stepped],
            (*READING, *self.acting, *SLOW),
            requestBody=taken(self.schemas[shapes.Step]),
            security=self.needed,
        )

    def _close(self) -> Schema:
        summary = "Close the session, Gymnasium-style."
        return self._operation("close", summary, {"type": "object"}, self.acting, security=self.needed)

    def _root(self) -> Schema:
        return self._operation("root", "See that the environment is there.", self.schemas[shapes.Status], (401,))


def _server_paths(schemas: Mapping[Any, Schema]) -> dict[str, Schema]:
    status = as_json(schemas[shapes.Status])
    metrics, page = {"text/plain": {"schema": {"type": "string"}}}, {"text/html": {"schema": {"type": "string"}}}
    found = {
        "/": ("root", "See that the server is there.", status),
        "/health": ("health", "See that the process is there.", status),
        "/ready": ("ready", "See that it can serve: the store answers.", status),
        "/metrics": ("metrics", "Figures for Prometheus.", metrics),
        "/openapi.json": ("openapi", "This document.", as_json({"type": "object"})),
        "/docs": ("docs", "The same, for people.", page),
    }
    return {path: {"get": operation(*about, statuses=())} for path, about in found.items()}


def _error(status: int, schema: Schema) -> Schema:
    codes = {code for known, code in FAULTS.values() if known == status}
    codes |= {code for code, known in STATUS_OF_RESULT.items() if code is not None and known == status}
    codes |= {*UNEXPECTED} if status == 500 else set()
    response: Schema = {"description": ERRORS[status], "content": as_json(schema), "x-stateroom-codes": sorted(codes)}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response
