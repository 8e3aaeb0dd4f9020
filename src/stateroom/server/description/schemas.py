"""JSON schemas of what goes over the wire: bodies of the wire protocol, and the types of environments.

Requests are not parsed with these types: endpoints read what they need, and ignore the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from typing_extensions import TypedDict

from stateroom.server.api import Parameters
from stateroom.server.request import LONGEST_NAME

Schema = dict[str, Any]

Wanted = dict[Hashable, tuple[Any, JsonSchemaMode]]
"""Types by any key, each as it is read or written."""

PLACE = "#/components/schemas/"
"""The place of definitions in an OpenAPI document."""


class UntitledFields(GenerateJsonSchema):
    """Schemas without titles of fields, which would repeat their names.

    Warnings about an author's defaults were shown when the environment was defined.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas_of(types: Wanted) -> tuple[dict[Hashable, Schema], Schema]:
    """The schema of each type, and the definitions that they share; a type without a schema allows anything."""
    adapters = {key: (adapter, mode) for key, (kind, mode) in types.items() if (adapter := _adapter(kind, mode))}
    made, definitions = TypeAdapter.json_schemas(
        [(key, mode, adapter) for key, (adapter, mode) in adapters.items()],
        ref_template=PLACE + "{model}",
        schema_generator=UntitledFields,
    )
    found = {key: made[key, adapters[key][1]] if key in adapters else {} for key in types}
    return found, definitions.get("$defs", {})


def _adapter(kind: Any, mode: JsonSchemaMode) -> TypeAdapter[Any] | None:
    """The adapter that makes the schema of a type; None if it has no schema."""
    try:
        adapter = TypeAdapter[Any](kind)
        adapter.json_schema(mode=mode, schema_generator=UntitledFields)
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None
    return adapter


class ByHand(UntitledFields):
    """Schemas of what a person fills in: bytes are base64, as in edits."""

    def bytes_schema(self, schema: Any) -> Schema:
        return {"type": "string", "contentEncoding": "base64"}


def schema_of(kind: Any) -> Schema:
    """The schema of one type, with its definitions; a type without a schema allows anything."""
    adapter = _adapter(kind, "validation")
    return {} if adapter is None else adapter.json_schema(schema_generator=ByHand)


# Parts of the description of an endpoint.

ALWAYS = (500, 503)
"""Error statuses of every endpoint."""
READING = (400, 413, 422)
"""Error statuses of an endpoint that reads a body."""
ACTING = (401, 409, 410)
"""Error statuses of an endpoint that uses a session."""
SLOW = (504,)
"""Error statuses of an endpoint that runs an author's code."""


def operation(operation_id: str, summary: str, reply: Schema, statuses: Sequence[int], **more: Any) -> Schema:
    """An endpoint, with its reply and its error statuses."""
    return {
        "operationId": operation_id,
        "summary": summary,
        **more,
        "responses": {"200": {"description": "Success.", "content": reply}, **errors({*statuses, *ALWAYS})},
    }


def errors(statuses: Iterable[int]) -> Schema:
    """The responses with these statuses."""
    return {str(status): {"$ref": f"#/components/responses/error_{status}"} for status in sorted(statuses)}


def as_json(schema: Schema) -> Schema:
    """A body of JSON."""
    return {"application/json": {"schema": schema}}


def taken(schema: Schema, *, required: bool = True) -> Schema:
    """The body of a request."""
    return {"content": as_json(schema), "required": required}


ADMIN = "admin"
"""The name of the security scheme of the admin token."""
OPERATOR: list[Schema] = [{}, {ADMIN: []}]
"""The security of an endpoint for the operator: without a token it answers on the server's own machine."""

ID: Schema = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
"""The id of a session or thread in a path."""


def query(parameters: type[Parameters], **known: Schema) -> list[Schema]:
    """The parameters in the URL; `known` has better schemas than their types give."""
    whole = parameters.model_json_schema()
    needed = whole.get("required", ())
    return [
        {"name": name, "in": "query", "schema": schema.get("anyOf", [schema])[0], "required": name in needed}
        for name, schema in (whole.get("properties", {}) | known).items()
    ]


# Bodies.

body = with_config(extra="allow", use_attribute_docstrings=True)

Name = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, description="The client's own name for the session.")
]


@body
class ErrorDetail(TypedDict):
    code: str
    """The problem, for programs."""
    message: str
    """What is wrong, where, and what to do, for people and models."""
    fields: NotRequired[dict[str, str]]
    """The problem of each field."""


@body
class ErrorBody(TypedDict):
    error: ErrorDetail


@body
class StatusBody(TypedDict):
    status: Literal["ok"]


# An episode.


@body
class SeedFields(TypedDict):
    """Fields of the row that seeds a session, besides the task's own."""

    resources_session_id: NotRequired[Name]
    seed_key: NotRequired[str]
    """The key from the reply that seeded the client's session, to seed it again."""


@body
class NamedSeedBody(TypedDict):
    """A session to which the client gives a name, with a separate row."""

    resources_session_id: Name
    task_data: dict[str, Any]
    """The task row."""
    episode_id: NotRequired[Any]
    task_id: NotRequired[Any]


@body
class MCPAddress(TypedDict):
    """How an MCP client reaches the session."""

    server_name: str
    url_path: str
    transport: Literal["http"]
    headers: dict[str, str]


@body
class SeedReplyBody(TypedDict):
    session_id: str
    seed_key: str
    """The key to seed the session again; keep it from the model."""
    mcp: MCPAddress
    replies: NotRequired[Literal[True]]
    """The environment's user answers the agent's messages: post each to `reply`."""
    opens: NotRequired[Literal[True]]
    """The user speaks first if the task has no message of theirs: post an empty message to `reply`."""
    instructs: NotRequired[Literal[True]]
    """The environment has instructions for the agent: get them from `instructions` before each request to a model."""


@body
class NamedSeedReply(TypedDict):
    resources_session_id: str
    seed_key: NotRequired[str]
    """The key to seed the session again; only the reply that made the session has it."""
    resources_tools: NotRequired[MCPAddress]
    """Only for a request with an `episode_id`, whose reply has nothing else."""
    session_id: NotRequired[str]
    mcp: NotRequired[MCPAddress]
    replies: NotRequired[Literal[True]]
    opens: NotRequired[Literal[True]]
    instructs: NotRequired[Literal[True]]


@with_config(
    extra="allow",
    json_schema_extra={
        "if": {"properties": {"type": {"const": "function_call"}}},
        "then": {"required": ["call_id", "name", "arguments"]},
    },
)
class ResponseItem(TypedDict):
    """An item of a Responses object; a `function_call` has an id, a name, and its arguments as JSON text."""

    type: str
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]


@body
class ResponseBody(TypedDict):
    """A Responses object, with the whole trajectory as its output."""

    output: Annotated[list[ResponseItem], Field(examples=[[]])]


@body
class AgentMessage(TypedDict):
    message: str
    """The agent's message to the user."""


@body
class AgentInstructions(TypedDict):
    instructions: str


@body
class UserReply(TypedDict):
    reply: str | None
    """The user's answer; null when the conversation is over."""


@body
class VerifyFields(TypedDict):
    """Fields of the row that is verified, besides the task's own."""

    response: ResponseBody


@body
class VerifyReply(TypedDict):
    """The reward, its parts, and other numbers and facts from the verifier; and what the model was asked and said."""

    reward: float


@body
class RunReply(TypedDict):
    """The row of an episode: the request's own keys, what the agent said, and the fields of the verdict."""

    response: NotRequired[ResponseBody]
    reward: NotRequired[float]
    _ng_failure_class: NotRequired[str]


@body
class InputMessage(TypedDict):
    """A message to the agent; tool calls and their results may be among the messages."""

    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: str


@body
class FunctionTool(TypedDict):
    type: Literal["function"]
    name: str


@body
class ResponsesBody(TypedDict):
    """A request of OpenAI's Responses API."""

    input: Annotated[str, Field(min_length=1)] | Annotated[list[InputMessage], Field(min_length=1)]
    """The whole conversation so far."""
    tools: NotRequired[list[FunctionTool]]
    """The tools that the model is offered; by default the environment's."""


@body
class CloseBody(TypedDict):
    resources_session_id: Annotated[Name, Field(examples=["the session_id that seeding gave"])]
    """The name that the session was seeded with, or its `session_id`."""
    episode_id: NotRequired[Any]


@body
class CloseReply(TypedDict):
    resources_session_id: str


# Many episodes.


@body
class VerifiedEpisode(TypedDict):
    _ng_task_index: int
    reward: NotRequired[float]


@body
class AggregateBody(TypedDict):
    verify_responses: list[VerifiedEpisode]
    """Replies to verify."""


Numbers = dict[str, float | None]


@body
class AggregateReply(TypedDict):
    group_level_metrics: list[dict[str, Any]]
    """One for each task, with its episodes."""
    agent_metrics: Numbers
    """Over all episodes."""
    key_metrics: Numbers
    """The most important ones."""
    repeat_level_metrics: list[Numbers]
    """One for each rollout index, if there are several."""


ReverifyMode = Literal["stateless", "unsupported"]


# Gymnasium-style.


@body
class ResetInfo(TypedDict):
    session_id: str
    seed_key: str
    supports_step_idempotency: Literal[True]
    supports_explicit_close: Literal[True]


@body
class ResetReply(TypedDict):
    observation: str | None
    info: ResetInfo


@body
class StepBody(TypedDict):
    response: ResponseBody
    _ng_step_request_id: NotRequired[str | int]
    """The same id again gives the recorded results."""


@body
class ToolOutput(TypedDict):
    call_id: str
    output: str


@body
class StepInfo(TypedDict):
    tool_outputs: list[ToolOutput]


@body
class StepReply(TypedDict):
    observation: str | None
    reward: float
    terminated: bool
    truncated: bool
    info: StepInfo


SeedReply = SeedReplyBody | NamedSeedReply

ALL: tuple[Any, ...] = (
    *(ErrorBody, StatusBody),
    *(SeedFields, NamedSeedBody, SeedReply, AgentMessage, AgentInstructions, UserReply, VerifyFields, VerifyReply),
    *(CloseBody, CloseReply),
    *(AggregateBody, AggregateReply, ReverifyMode),
    *(ResetReply, StepBody, StepReply),
    *(RunReply, ResponseBody, ResponsesBody),
)
"""The bodies of requests and replies."""
