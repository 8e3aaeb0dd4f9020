"""The bodies of the wire protocol as types: what the description tells clients of them.

Requests are not parsed with these: endpoints read what they need, and let all else pass.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from stateroom.server.seeding import LONGEST_NAME

body = with_config(extra="allow", use_attribute_docstrings=True)

Name = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, description="The client's own name for the session.")
]


@body
class Problem(TypedDict):
    code: str
    """What went wrong, for programs."""
    message: str
    """What is wrong, where, and what to do, for people and models."""
    fields: NotRequired[dict[str, str]]
    """What is wrong with which field."""


@body
class Error(TypedDict):
    error: Problem


@body
class Status(TypedDict):
    status: Literal["ok"]


# An episode.


@body
class Seeding(TypedDict):
    """What the row that seeds a session may have besides the task's own fields."""

    resources_session_id: NotRequired[Name]
    seed_key: NotRequired[str]
    """What the reply to the seeding of the client's session gave, to seed it again."""


@body
class NamedSeeding(TypedDict):
    """A session that the client gives a name, and the row apart."""

    resources_session_id: Name
    task_data: dict[str, Any]
    """The task row."""
    episode_id: NotRequired[Any]
    task_id: NotRequired[Any]


@body
class MCPServer(TypedDict):
    """How an MCP client reaches the session."""

    server_name: str
    url_path: str
    transport: Literal["http"]
    headers: dict[str, str]


@body
class Seeded(TypedDict):
    session_id: str
    seed_key: str
    """What it takes to seed the session again; it is to be kept from the model."""
    mcp: MCPServer
    replies: NotRequired[Literal[True]]
    """That the agent's messages are answered: post each to `reply`."""


@body
class NamedSeeded(TypedDict):
    resources_session_id: str
    seed_key: NotRequired[str]
    """What it takes to seed the session again; only the reply that made the session has it."""
    resources_tools: NotRequired[list[dict[str, Any]]]
    session_id: NotRequired[str]
    mcp: NotRequired[MCPServer]
    replies: NotRequired[Literal[True]]


@with_config(
    extra="allow",
    json_schema_extra={
        "if": {"properties": {"type": {"const": "function_call"}}},
        "then": {"required": ["call_id", "name", "arguments"]},
    },
)
class Item(TypedDict):
    """An item of a Responses object; a `function_call` has an id, a name, and its arguments as JSON text."""

    type: str
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]


@body
class Response(TypedDict):
    """A Responses object: the whole trajectory is its output."""

    output: Annotated[list[Item], Field(examples=[[]])]


@body
class Said(TypedDict):
    message: str
    """What the agent says to the user."""


@body
class Replied(TypedDict):
    reply: str | None
    """What the user answers; null when the conversation is over."""


@body
class Judging(TypedDict):
    """What a row has besides the task's own fields when it is to be judged."""

    response: Response


@body
class Judged(TypedDict):
    """The request's own keys, the reward, and other numbers and facts from the verifier."""

    reward: float


@body
class Closing(TypedDict):
    resources_session_id: Annotated[str, Field(examples=["the session_id that seeding gave"])]
    """The name that the session was seeded with, or the `session_id` that it was given."""
    episode_id: NotRequired[Any]


@body
class Closed(TypedDict):
    resources_session_id: str


# Many episodes.


@body
class Verified(TypedDict):
    _ng_task_index: int
    reward: NotRequired[float]


@body
class Episodes(TypedDict):
    verify_responses: list[Verified]
    """Replies to verify."""


Numbers = dict[str, float | None]


@body
class Aggregate(TypedDict):
    group_level_metrics: list[Numbers]
    """One for each task."""
    agent_metrics: Numbers
    """Over all episodes."""
    key_metrics: Numbers
    """Those to look at first."""


ReverifyMode = Literal["stateless", "unsupported"]


# Gymnasium-style.


@body
class Begun(TypedDict):
    session_id: str
    seed_key: str


@body
class Reset(TypedDict):
    observation: str | None
    info: Begun


@body
class Step(TypedDict):
    response: Response
    _ng_step_request_id: NotRequired[str | int]
    """The same id again gives the recorded results."""


@body
class Output(TypedDict):
    call_id: str
    output: str


@body
class Outputs(TypedDict):
    tool_outputs: list[Output]


@body
class Stepped(TypedDict):
    observation: str | None
    reward: float
    terminated: bool
    truncated: bool
    info: Outputs


SeedReply = Seeded | NamedSeeded

ALL: tuple[Any, ...] = (
    *(Error, Status),
    *(Seeding, NamedSeeding, SeedReply, Said, Replied, Judging, Judged, Closing, Closed),
    *(Episodes, Aggregate, ReverifyMode),
    *(Reset, Step, Stepped),
)
"""What an endpoint takes or gives."""
