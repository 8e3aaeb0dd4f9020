"""What requests about threads may ask for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from stateroom.agent import ThreadEnvironment
from stateroom.server.parameters import After, Amount, Name, Parameters, Place, Text

Said = Annotated[str, Field(min_length=1)]


@with_config(extra="allow")
class Part(TypedDict):
    """A part of a message, as the Responses API has it."""

    type: str
    text: NotRequired[str]


@with_config(extra="allow")
class Message(TypedDict):
    """A message, as the Responses API has it."""

    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class NewThread(Parameters):
    environment: str = ThreadEnvironment.name
    """Whose tools act in it; by default there are none."""
    user: Name | None = None
    metadata: dict[str, Any] = {}
    instructions: str = ""
    """A system message that it begins with."""
    task: dict[str, Any] = {}
    """The row that the environment seeds its state by."""


class ThreadList(Parameters):
    environment: str = ThreadEnvironment.name
    user: Name | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    cursor: str | None = None


class ThreadPart(Parameters):
    after: After = 0
    limit: Amount = 100


class ThreadMessage(Parameters):
    message: Said | Message | Annotated[list[Message], Field(min_length=1, max_length=1000)]
    """A text of the user's, a message, or several."""
    pin: bool = False
    """Whether the model is always shown it, however long the conversation."""


class ThreadFork(Parameters):
    at: Place | None = None


class ThreadCancel(Parameters):
    reason: Text = ""
