"""The OpenAPI document of a server: every endpoint with its parameters and all its responses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import cleandoc
from typing import Any, get_type_hints

from stateroom.environment import Tool
from stateroom.errors import ERRORS, StateroomError
from stateroom.server.description import admin, schemas as bodies, threads
from stateroom.server.description.schemas import (
    ACTING,
    READING,
    SLOW,
    Schema,
    Wanted,
    as_json,
    errors,
    operation,
    schemas_of,
    taken,
)
from stateroom.server.environment import ServedEnvironment
from stateroom.server.request import BadJSON
from stateroom.server.response import STATUS_OF_RESULT
from stateroom.version import __version__

ABOUT = """
### The session
Seeding gives a cookie, and every reply gives it again, errors included. Send it with every request that follows. With
the `seed_key` of the reply to seeding a client can seed the session again: keep it from the model.

### Calls that are sent again
Give a tool call an id of your own in the header `Idempotency-Key`. In one session the same id gives the recorded
result, and nothing runs twice.

### MCP
The tools are also served over MCP, as streamable HTTP at `mcp` beside them. The reply to seeding says where, and with
which header (`X-NeMo-Gym-Session-Token`) a client reaches its session.

### Threads
A thread is a conversation that the server keeps: add a message, and let the server's model answer. `POST /threads`
gives a `token`; send it as `Authorization: Bearer TOKEN`. `GET /threads/ID` gives a new one in time.

### Errors
An error is `{"error": {"code": …, "message": …}}`, with a status for machines. Where single fields are wrong, `fields`
says what is wrong with which. A model may read every error of a tool call.

### Other
A path may begin with `/ng-rollout/<id>`, by which clients tell their rollouts apart in logs. The operator of the
server finds its sessions, with their logs and states, under `/admin`.
"""

STATUSES = {
    400: "The body is not JSON, or the tool says in its own words why it will not do this.",
    401: "There is no session token, or one that was not made here or is out of date. "
    "Seed a session, and send the cookie that it gives; or create a thread, and send its token.",
    403: "This is for the operator of the server.",
    404: "There is no tool, or revision, of this name; or no model that answers in threads.",
    409: "The session has its verdict, the client has a session already, another client wrote first, or the agent "
    "of a thread is in another phase.",
    410: "The session was closed, has expired, or is not in the store. Seed another one.",
    413: "The body, or the state, is larger than its limit.",
    422: "The arguments or the task do not fit; `fields` says what is wrong with which.",
    429: "The API key has reached its limit of sessions or calls in this minute. "
    "Try again after `Retry-After` seconds.",
    500: "The environment or the server failed by mistake. The server's log has more.",
    502: "The model that plays the user, answers in threads or is the agent gave an answer that cannot be used.",
    503: "The server is at one of its limits, or the store does not answer. Try again after `Retry-After` seconds.",
    504: "It took longer than its timeout.",
}
"""What a status means."""

UNEXPECTED = ("environment_error", "internal_error")
"""The codes of unexpected errors of the server or the environment."""

KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The call's id. The same id again gives the recorded result, and runs nothing.",
    "schema": {"type": "string", "pattern": "^[!-~]+$"},
}

API_KEY = "key"
"""The name of the security scheme of API keys."""

SEED_HEADERS: list[Schema] = [
    {
        "name": "Stateroom-Seed",
        "in": "header",
        "description": "The session's random seed; by default a random number.",
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


def document(
    environments: Sequence[ServedEnvironment], agents: Collection[str] = (), *, for_operator: bool = False
) -> Schema:
    """The OpenAPI document of a server with these environments; `agents` names those that have an agent.

    `for_operator`, it leaves out the endpoints for agents.
    """
    wanted: Wanted = {**{kind: (kind, "validation") for kind in bodies.ALL}, **threads.TYPES, **admin.TYPES}
    for one in environments:
        wanted |= _types(one)
    schemas, definitions = schemas_of(wanted)
    paths: dict[str, Schema] = {}
    if not for_operator:
        for one in environments:
            paths |= _Endpoints(one, schemas, has_agent=one.name in agents).paths()
        paths |= threads.paths(environments, schemas)
    if any(one.keys for one in environments):
        _ask_for_keys(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(one.name for one in environments),
            "version": __version__,
            "description": f"{_introduction(environments)}\n\n{ABOUT.strip()}",
        },
        "tags": [
            {"name": one.name, "description": _description_of(one)} for one in (() if for_operator else environments)
        ],
        "paths": paths | admin.paths(environments, schemas) | _server_paths(schemas),
        "components": {
            "schemas": definitions,
            "responses": {f"error_{status}": _error(status, schemas[bodies.ErrorBody]) for status in STATUSES},
            "securitySchemes": threads.SECURITY
            | {API_KEY: {"type": "http", "scheme": "bearer"}}
            | {
                f"{one.name}.session": {"type": "apiKey", "in": "cookie", "name": one.cookies.name}
                for one in environments
            },
        },
    }


def _ask_for_keys(paths: Mapping[str, Schema]) -> None:
    """Describe API keys: a POST without a session needs one, and all requests count."""
    for path in paths.values():
        for method, described in path.items():
            described["responses"] |= errors((401, 429))
            if method == "post":
                described["security"] = [one or {API_KEY: []} for one in described.get("security", [{}])]


def _types(served: ServedEnvironment) -> Wanted:
    """The types of an environment that go over the wire."""
    name = served.name
    wanted: Wanted = {(name, "task"): (served.environment.task_type, "validation")}
    for tool in served.environment.tools.values():
        wanted[name, tool.name, "arguments"] = (tool.arguments, "validation")
        wanted[name, tool.name, "result"] = (_returned(tool), "serialization")
    return wanted


def _returned(tool: Tool) -> Any:
    """The declared return type of a tool; anything, if it cannot be read."""
    try:
        return get_type_hints(tool.procedure.function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


def _introduction(environments: Sequence[ServedEnvironment]) -> str:
    if len(environments) == 1:
        return _description_of(environments[0])
    return "\n".join(f"- **{one.name}**: {_description_of(one).partition(chr(10))[0]}" for one in environments)


def _description_of(served: ServedEnvironment) -> str:
    return cleandoc(type(served.environment).__doc__ or "")


class _Endpoints:
    """The endpoints of one environment, in the order of an episode."""

    def __init__(self, served: ServedEnvironment, schemas: Mapping[Any, Schema], *, has_agent: bool) -> None:
        self.served = served
        self.has_agent = has_agent
        self.schemas = schemas
        self.name = served.name
        self.task = schemas[self.name, "task"] or {"type": "object"}
        token: Schema = {f"{self.name}.session": []}
        self.optional: list[Schema] = [{}, token]
        self.needed = self.optional if served.stateless else [token]
        self.acting = (401,) if served.stateless else ACTING
        """A session without a state cannot be lost, and its calls have no conflicts."""

    def paths(self) -> dict[str, Schema]:
        environment = self.served.environment
        paths = {
            "/seed_session": {"post": self._seed_session()},
            **{f"/{tool.name}": {"post": self._tool(tool)} for tool in environment.tools.values()},
            **({} if environment.reply_tool is None else {"/reply": {"post": self._reply()}}),
            **({} if environment.instructions_tool is None else {"/instructions": {"get": self._instructions()}}),
            "/verify": {"post": self._verify()},
            "/close_session": {"post": self._close_session()},
            "/aggregate_metrics": {"post": self._aggregate_metrics()},
            "/reverify_mode": {"get": self._reverify_mode()},
            "/reset": {"post": self._reset()},
            "/step": {"post": self._step()},
            "/close": {"post": self._close()},
            "/": {"get": self._root()},
        }
        if self.has_agent:
            paths |= {"/run": {"post": self._run()}, "/v1/responses": {"post": self._responses()}}
        return {self.served.prefix + path: item for path, item in paths.items()}

    def _operation(self, name: str, summary: str, reply: Schema, statuses: Sequence[int], **more: Any) -> Schema:
        return operation(f"{self.name}.{name}", summary, as_json(reply), statuses, tags=[self.name], **more)

    def _seed_session(self) -> Schema:
        row = {"allOf": [self.task, self.schemas[bodies.SeedFields]]}
        named = {"allOf": [self.schemas[bodies.NamedSeedBody], {"properties": {"task_data": self.task}}]}
        return self._seeding(
            "seed_session",
            "Seed a session.",
            self.schemas[bodies.SeedReply],
            (409, 410, *READING, *SLOW),
            description="The body is the whole task row, and the cookie of the reply is the session. With the cookie "
            "of a live session it is refused, because the model may have sent it: with the `seed_key` of the reply in "
            "the row the session is seeded again, and a new session replaces it. A client may give "
            "a session a name of its own, `resources_session_id`; to seed that name again joins it.",
            requestBody=taken({"anyOf": [row, named]}),
        )

    def _seeding(self, *about: Any, **more: Any) -> Schema:
        """An operation whose reply hands out a session's token."""
        operation = self._operation(*about, **more, parameters=SEED_HEADERS, security=self.optional)
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
            "Let the user answer a message of the agent.",
            self.schemas[bodies.UserReply],
            (502, *READING, *self.acting, *SLOW),
            description="For a message without tool calls: the user's answer is the next message to the model. "
            "It needs an id, so that it is no tool that a model could call; without one it is refused.",
            parameters=[{**KEY, "required": True}],
            requestBody=taken(self.schemas[bodies.AgentMessage]),
            security=self.needed,
        )

    def _instructions(self) -> Schema:
        return self._operation(
            "instructions",
            "What the environment tells the agent now.",
            self.schemas[bodies.AgentInstructions],
            (502, *self.acting, *SLOW),
            description="A text for the model, before the conversation. It follows from the state, so ask for it "
            "before each request to the model.",
            security=self.needed,
        )

    def _verify(self) -> Schema:
        return self._operation(
            "verify",
            "Verify the episode.",
            self.schemas[bodies.VerifyReply],
            (*READING, *self.acting, *SLOW),
            description="The body is the task row, and the model's output as `response`. The reply has the fields of "
            "the verdict, each part of the reward also as a number of its own, and of the row "
            "`responses_create_params` and `response`. The verdict seals the session: nothing can be changed any more, "
            "and to verify it again gives the same verdict.",
            requestBody=taken({"allOf": [self.task, self.schemas[bodies.VerifyFields]]}),
            security=self.needed,
        )

    def _close_session(self) -> Schema:
        return self._operation(
            "close_session",
            "Close the session.",
            self.schemas[bodies.CloseReply],
            (*READING, 401, 409, 410),
            description="It can no longer be used. To close it twice is no error, nor is to close a name that was "
            "never seeded: to seed that name later is refused.",
            requestBody=taken(self.schemas[bodies.CloseBody]),
            security=self.optional,
        )

    def _aggregate_metrics(self) -> Schema:
        return self._operation(
            "aggregate_metrics",
            "Metrics of many episodes, over all and by task.",
            self.schemas[bodies.AggregateReply],
            READING,
            requestBody=taken(self.schemas[bodies.AggregateBody]),
        )

    def _reverify_mode(self) -> Schema:
        summary = "Whether an episode can be verified again from its row alone."
        return self._operation("reverify_mode", summary, self.schemas[bodies.ReverifyMode], ())

    def _reset(self) -> Schema:
        return self._seeding(
            "reset",
            "Seed a session, Gymnasium-style.",
            self.schemas[bodies.ResetReply],
            (409, *READING, *SLOW),
            requestBody=taken(self.task),
        )

    def _step(self) -> Schema:
        return self._operation(
            "step",
            "Make the tool calls of a response; a response without any is answered by the user, or ends the episode.",
            self.schemas[bodies.StepReply],
            (*READING, *self.acting, *SLOW),
            requestBody=taken(self.schemas[bodies.StepBody]),
            security=self.needed,
        )

    def _close(self) -> Schema:
        summary = "Close the session, Gymnasium-style."
        return self._operation("close", summary, {"type": "object"}, self.acting, security=self.needed)

    def _run(self) -> Schema:
        return self._operation(
            "run",
            "Run a whole episode with the server's agent.",
            self.schemas[bodies.RunReply],
            (409, 410, *READING, *SLOW),
            description="The body is the whole task row. The reply has the same keys, the agent's `response` and the "
            "fields of the verdict; of an episode that fails it has `_ng_failure_class` instead. With an id, a request "
            "that is sent again goes on with the episode, or gives the same reply; `_ng_rollout_id` in the row is an "
            "id too. When the client disconnects, the agent stops.",
            parameters=[{**KEY, "description": "The episode's id. The same id again is the same episode."}],
            requestBody=taken(self.task),
        )

    def _responses(self) -> Schema:
        return self._operation(
            "responses",
            "Let the server's agent act in the session.",
            self.schemas[bodies.ResponseBody],
            (502, *READING, *self.acting, *SLOW),
            description="The body is a request of OpenAI's Responses API. The agent calls the session's tools until "
            "it is done, and `output` of the reply has all that was said, tool results included.",
            parameters=[{**KEY, "description": "The request's id. The same id again gives the same reply."}],
            requestBody=taken(self.schemas[bodies.ResponsesBody]),
            security=self.needed,
        )

    def _root(self) -> Schema:
        return self._operation("root", "Whether the environment is served.", self.schemas[bodies.StatusBody], (401,))


def _server_paths(schemas: Mapping[Any, Schema]) -> dict[str, Schema]:
    status = as_json(schemas[bodies.StatusBody])
    metrics, page = {"text/plain": {"schema": {"type": "string"}}}, {"text/html": {"schema": {"type": "string"}}}
    found = {
        "/": ("root", "Whether the server runs.", status),
        "/health": ("health", "Whether the process runs.", status),
        "/ready": ("ready", "Whether the server is ready: the store answers.", status),
        "/metrics": ("metrics", "Metrics for Prometheus.", metrics),
        "/openapi.json": ("openapi", "This document.", as_json({"type": "object"})),
        "/docs": ("docs", "The same, for people.", page),
    }
    return {path: {"get": operation(*about, statuses=())} for path, about in found.items()}


def _error(status: int, schema: Schema) -> Schema:
    kinds: tuple[type[StateroomError], ...] = (BadJSON, *ERRORS)
    codes = {kind.code for kind in kinds if kind.status == status and kind.code is not None}
    codes |= {code for code, known in STATUS_OF_RESULT.items() if code is not None and known == status}
    codes |= {*UNEXPECTED} if status == 500 else set()
    response: Schema = {"description": STATUSES[status], "content": as_json(schema), "x-stateroom-codes": sorted(codes)}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response
