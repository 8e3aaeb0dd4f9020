"""Bodies of requests and replies between an environment and its clients.

Endpoints that must be fast read their requests by hand, with the functions at the end; then the types are for the
OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

import msgspec
from pydantic import BaseModel, Field, with_config
from typing_extensions import TypedDict

from stateroom.errors import BadTask
from stateroom.model import is_content, text_of
from stateroom.server.http import HTTPRequest, wrong_field

T = TypeVar("T")

MAX_START_SECONDS = 2.0**40
"""Largest time, in seconds since 1970, at which a session's clock may start."""

MAX_NAME_CHARACTERS = 200
"""Characters of a client's own name for a session, and of an unknown tool's name in an error message."""

NOT_OF_TASK = frozenset({"response", "responses_create_params", "agent_ref", "reward", "resources_session_id"})
"""Fields of a request that verifies which are not compared with the row of the seed."""

body = with_config(extra="allow", use_attribute_docstrings=True)

Name = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS, description="The client's name for the session.")
]


# Headers.


class CallHeaders(BaseModel):
    key: Annotated[
        str | None,
        Field(
            alias="Idempotency-Key",
            pattern="^[!-~]+$",
            description="Id of the request. Sending the same id again returns the recorded result, and runs nothing.",
        ),
    ] = None


class ReplyHeaders(CallHeaders):
    key: Annotated[str, Field(alias="Idempotency-Key", pattern="^[!-~]+$", description="Id of the message.")]


class SeedHeaders(BaseModel):
    seed: Annotated[
        str | None,
        Field(
            alias="Stateroom-Seed",
            pattern="^[0-9]{1,18}$",
            description="Random seed of the session; by default a random number.",
        ),
    ] = None
    start: Annotated[
        float | None,
        Field(
            alias="Stateroom-Began",
            ge=0,
            le=MAX_START_SECONDS,
            description="Start of the session's clock, in seconds since 1970; by default now.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Field(
            alias="Stateroom-Session",
            pattern=f"^[!-~]{{1,{MAX_NAME_CHARACTERS}}}$",
            description="Name of the session, like `resources_session_id`.",
        ),
    ] = None


# An episode.


@body
class SeedFields(TypedDict):
    """Fields of the row that seeds a session, besides the task's own."""

    resources_session_id: NotRequired[Name]
    seed_key: NotRequired[str]
    """The key from the reply that seeded the client's session, to seed it again."""


@body
class NamedSeed(TypedDict, Generic[T]):
    """A session to which the client gives a name, with a separate row."""

    resources_session_id: Name
    task_data: T
    """The task row."""
    episode_id: NotRequired[Any]
    task_id: NotRequired[Any]


class MCPAddress(msgspec.Struct, frozen=True):
    """How an MCP client reaches the session."""

    server_name: str
    url_path: str
    headers: dict[str, str]
    transport: Literal["http"] = "http"


class Hooks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Optional features of an environment; a missing field means that it lacks the feature."""

    replies: bool = False
    """The environment's user answers the agent's messages: post each to `reply`."""
    opens: bool = False
    """The user speaks first if the task has no message of theirs: post an empty message to `reply`."""
    instructs: bool = False
    """The environment has instructions for the agent: get them from `instructions` before each request to a model."""


class SeedReply(Hooks, frozen=True, kw_only=True, omit_defaults=True):
    seed_key: str
    """The key to seed the session again; keep it from the model."""
    session_id: str
    mcp: MCPAddress


class NamedSeedReply(Hooks, frozen=True, kw_only=True, omit_defaults=True):
    resources_session_id: str
    resources_tools: MCPAddress | None = None
    """Only for a request with an `episode_id`, whose reply has nothing else."""
    seed_key: str | None = None
    """The key to seed the session again; only the reply that made the session has it."""
    session_id: str | None = None
    mcp: MCPAddress | None = None


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
class ResponseObject(TypedDict):
    """A Responses object, with the whole trajectory as its output."""

    output: Annotated[list[ResponseItem], Field(examples=[[]])]


@body
class AgentMessage(TypedDict):
    message: str
    """The agent's message to the user."""


class UserReply(msgspec.Struct, frozen=True):
    reply: str | None
    """The user's answer; null when the conversation is over."""


class Instructions(msgspec.Struct, frozen=True):
    instructions: str


@body
class VerifyFields(TypedDict):
    """Fields of the row that is verified, besides the task's own."""

    response: ResponseObject


@body
class VerifyReply(TypedDict):
    """The reward, its parts, and other numbers and facts from the verifier; and the model's request and response."""

    reward: float


@body
class CloseBody(TypedDict):
    resources_session_id: Annotated[Name, Field(examples=["the session_id that seeding gave"])]
    """The name that the session was seeded with, or its `session_id`."""
    episode_id: NotRequired[Any]


class CloseReply(msgspec.Struct, frozen=True):
    resources_session_id: str


ReverifyMode = Literal["stateless", "unsupported"]


# Many episodes.


@body
class VerifiedEpisode(TypedDict):
    _ng_task_index: int
    reward: NotRequired[float]


@body
class VerifiedEpisodes(TypedDict):
    verify_responses: list[VerifiedEpisode]
    """Replies to verify."""


# As Gymnasium has it.


class ResetInfo(msgspec.Struct, frozen=True):
    session_id: str
    seed_key: str
    supports_step_idempotency: bool = True
    supports_explicit_close: bool = True


class ResetReply(msgspec.Struct, frozen=True):
    observation: str | None
    info: ResetInfo


@body
class StepBody(TypedDict):
    response: ResponseObject
    _ng_step_request_id: NotRequired[str | int]
    """Sending the same id again returns the recorded results."""


class ToolOutput(msgspec.Struct, frozen=True):
    call_id: str
    output: str


class StepInfo(msgspec.Struct, frozen=True):
    tool_outputs: list[ToolOutput]


class StepReply(msgspec.Struct, frozen=True):
    observation: str | None
    reward: float
    terminated: bool
    info: StepInfo
    truncated: bool = False


# The agent server.


@body
class RunReply(TypedDict):
    """The row of an episode: the request's keys, the agent's response, and the fields of the verdict."""

    response: NotRequired[ResponseObject]
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


# What a request that seeds a session holds besides the task.


def name_and_row(request: HTTPRequest, body: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The client's own name for the session that it seeds, if it gives one, and the task row.

    Our own runner gives the name in a header, which other servers ignore.
    """
    header = request.headers.get(b"stateroom-session")
    name = body.get("resources_session_id") if header is None else header.decode("latin-1")
    if name is None and "resources_session_id" not in body:
        return None, body
    name = checked_session_name(name)
    row = body.get("task_data", {key: value for key, value in body.items() if key != "resources_session_id"})
    if not isinstance(row, dict):
        raise wrong_field("task_data", "should be an object: the task row")
    if is_typed_seed(body):
        row = {**row, **{f"_ng_{field}": body[field] for field in ("episode_id", "task_id") if field in body}}
    return name, row


def checked_session_name(name: Any) -> str:
    """A client's own name for a session, or the id that the session was given."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise wrong_field("resources_session_id", f"should be a text of 1 to {MAX_NAME_CHARACTERS} characters")
    return name


def is_typed_seed(body: dict[str, Any]) -> bool:
    """Whether a request seeds as the environment servers of NeMo Gym do, which bind the session to an episode."""
    return "episode_id" in body and "task_data" in body


def seed_and_start(request: HTTPRequest) -> tuple[int | None, float | None]:
    """The session's random seed and the time at which its clock starts, as our own runner sets them in headers."""
    seed, start = request.headers.get(b"stateroom-seed"), request.headers.get(b"stateroom-began")
    if seed is not None and (not seed.isdigit() or len(seed) > 20):
        raise BadTask("the header Stateroom-Seed should be a whole number")
    try:
        began = None if start is None else float(start)
    except ValueError:
        began = -1.0
    if began is not None and not 0 <= began <= MAX_START_SECONDS:
        raise BadTask("the header Stateroom-Began should be seconds since 1970")
    return None if seed is None else int(seed), began


def task_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The task's own fields in the body of a request that verifies: neither the response nor what runners add."""
    return {name: value for name, value in body.items() if name not in NOT_OF_TASK and not name.startswith("_ng_")}


# The Responses object in a request, checked before an author's verifier sees it.


CONTENT = "the content of a message should be a text, or a list of parts that each have a text"


def checked_response(body: dict[str, Any]) -> dict[str, Any]:
    """The `response` of a body."""
    response = body.get("response")
    if not isinstance(response, dict):
        raise wrong_field("response", "should be a Responses object")
    output = response.get("output", [])
    if not isinstance(output, list):
        raise wrong_field("response.output", "should be a list of items")
    for item in output:
        if not isinstance(item, dict):
            raise wrong_field("response.output", "should be a list of items")
        if item.get("type") == "function_call":
            _check_call(item)
        elif not is_content(item.get("content")):
            raise wrong_field("response.output", CONTENT)
    return response


def _check_call(call: dict[str, Any]) -> None:
    if not isinstance(call.get("call_id"), str) or not isinstance(call.get("name"), str):
        raise wrong_field("response.output", "a function_call should have a call_id and a name")
    arguments = call.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        raise wrong_field("response.output", "the arguments of a function_call should be a text with JSON")


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls in a response."""
    return [item for item in response.get("output", ()) if item.get("type") == "function_call"]


def message_text(response: dict[str, Any]) -> str:
    """The text of the messages in a response."""
    return "".join(text_of(item) for item in response.get("output", ()) if item.get("type") == "message")
