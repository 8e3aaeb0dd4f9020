"""`Agent`, and what it needs to work: a workspace with tools, and a log of its conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stateroom.agent.context import Context
from stateroom.model import Exactness, Item, Model
from stateroom.session import AgentStatus, LogEntry, Update

MAX_STEPS = 50
"""Default limit of a model's answers in one turn."""

MAX_INVALID_CALLS = 10
"""Default limit of consecutive tool calls that could not run."""


def function_tool(name: str, description: str, **parameters: str) -> Item:
    """A tool of an agent's own, for its model; the parameters are texts, each with its description."""
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string", "description": about} for parameter, about in parameters.items()},
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": True}


ASK_USER = function_tool(
    "ask_user", "Ask the user something that you need to know before you can go on.", question="What to ask."
)
"""The tool with which a model asks for input."""


@dataclass(frozen=True)
class Agent:
    """A model with its instructions and limits. An agent stores nothing of a conversation."""

    model: Model
    instructions: str = ""
    """System instructions for every conversation. The environment's own instructions follow them."""
    context: Context = field(default_factory=Context)
    """Bounds on the part of a conversation that the model sees."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other parameters of the Responses API, such as `temperature`."""
    seed: int = 0
    """The seed of the model's answers, for models that take one."""
    max_steps: int = MAX_STEPS
    """Maximum answers of the model in one turn."""
    deadline: float | None = None
    """Maximum seconds of work on a turn, in one process."""
    max_invalid_calls: int = MAX_INVALID_CALLS
    """Maximum consecutive tool calls that could not run: of unknown tools, or with invalid arguments."""
    asks: bool = False
    """Whether the model can ask for input, with the tool `ask_user`."""
    plan: bool = False
    """Whether the model plans what it does, with the tools `make_plan` and `end_step`."""
    tokens: Exactness | None = None
    """Whether to record exact tokens, and what to do with a prompt that does not continue the previous tokens."""


class Outcome(Protocol):
    """The result of a tool call."""

    @property
    def content(self) -> Any:
        """The result for the model, as JSON data."""

    @property
    def code(self) -> str | None:
        """The error code of a failed call."""


class Tools(Protocol):
    """Runs tool calls: a session, or a client of one."""

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        """Call a tool. A `call_id` that was used before returns the same result and runs nothing."""


class Workspace(Tools, Protocol):
    """The workspace of an agent: a session, or a client of one."""

    @property
    def replies(self) -> bool:
        """Whether the environment answers the agent's messages."""

    @property
    def opens(self) -> bool:
        """Whether the environment's user speaks first where the task has no message of theirs."""

    def reads(self, name: str) -> bool:
        """Whether a tool only reads the state; such calls may run in parallel."""

    async def instructions(self) -> str:
        """Return the environment's current instructions; empty if it has none."""

    async def reply(self, message: str, *, call_id: str) -> str | None:
        """Answer a message of the agent; None ends the conversation. A `call_id` is answered once."""


class WrappedWorkspace:
    """Wraps another workspace; a subclass changes some of its methods."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @property
    def replies(self) -> bool:
        return self._workspace.replies

    @property
    def opens(self) -> bool:
        return self._workspace.opens

    def reads(self, name: str) -> bool:
        return self._workspace.reads(name)

    async def instructions(self) -> str:
        return await self._workspace.instructions()

    async def reply(self, message: str, *, call_id: str) -> str | None:
        return await self._workspace.reply(message, call_id=call_id)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        return await self._workspace.call(name, arguments, call_id=call_id)


class AgentLog(Protocol):
    """Keeps the agent's conversation and status: `SessionAgent` in a session, or `AgentInMemory`."""

    @property
    def status(self) -> AgentStatus:
        """The agent's status."""

    async def load(self) -> AgentStatus:
        """Load and return the agent's status; see `SessionAgent.load`."""

    async def say(self, update: Update, *, after: AgentStatus | None = None, **changes: Any) -> AgentStatus:
        """Add to the conversation; see `SessionAgent.say`."""

    async def compact(self, window: dict[str, Any], *, after: AgentStatus | None = None) -> AgentStatus:
        """Start the model's view from a window; see `SessionAgent.compact`."""

    async def said(self, since: int = 0) -> list[LogEntry]:
        """Return the entries of the conversation, from a revision on; see `SessionAgent.said`."""
