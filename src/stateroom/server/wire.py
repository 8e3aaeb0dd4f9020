"""What goes over the wire between an environment and its clients: bodies of requests and of replies.

Endpoints that must be fast read requests by hand (see `request`); then the types here are for the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

import msgspec
from pydantic import BaseModel, Field, with_config
from typing_extensions import TypedDict

from stateroom.server.request import LATEST_START, LONGEST_NAME

T = TypeVar("T")

body = with_config(extra="allow", use_attribute_docstrings=True)

Name = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, description="The client's own name for the session.")
]


# Headers.


class CallHeaders(BaseModel):
    key: Annotated[
        str | None,
        Field(
            alias="Idempotency-Key",
            pattern="^[!-~]+$",
            description="The request's id. The same id again gives the recorded result, and runs nothing.",
        ),
    ] = None


class ReplyHeaders(CallHeaders):
    key: Annotated[str, Field(alias="Idempotency-Key", pattern="^[!-~]+$", description="The message's id.")]


class SeedHeaders(BaseModel):
    seed: Annotated[
        str | None,
        Field(
            alias="Stateroom-Seed",
            pattern="^[0-9]{1,18}$",
            description="The session's random seed; by default a random number.",
        ),
    ] = None
    start: Annotated[
        float | None,
        Field(
            alias="Stateroom-Began",
            ge=0,
            le=LATEST_START,
            description="When the session's clock starts, in seconds since 1970; by default now.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Field(
            alias="Stateroom-Session",
            pattern=f"^[!-~]{{1,{LONGEST_NAME}}}$",
            description="A name for the session, as `resources_session_id` is one.",
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
    """What an environment does besides its tools; without a field it does not."""

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
    """The reward, its parts, and other numbers and facts from the verifier; and what the model was asked and said."""

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
    """The same id again gives the recorded results."""


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
    """The row of an episode: the request's own keys, what the agent said, and the fields of the verdict."""

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
