"""Shared parts of the APIs: parameters, cursors, server-sent events, and the status of an agent."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from math import inf
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sse_starlette import EventSourceResponse, ServerSentEvent

from stateroom.errors import InvalidArguments
from stateroom.server.http import Receive, Scope, Send, wrong_field
from stateroom.session import AgentStatus
from stateroom.state import to_json

HEARTBEAT_SECONDS = 15.0
"""Seconds between two comments in a stream, so that no proxy takes a silent stream for dead."""


# Parameters.


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Accepts 2.0 for 2, as JSON Schema does."""
RevisionNumber = Annotated[int, Field(ge=1, le=2**53), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=200)]
_LATIN = "\u00a1-\u00ac\u00ae-\u024f"
User = Annotated[str, Field(min_length=1, max_length=200, pattern=f"^([ -9;-~{_LATIN}]|:+[!-9;-~{_LATIN}])*:*$")]
"""The name of a user: Latin letters and other printable characters, without a colon followed by a space."""
RevisionOrName = RevisionNumber | Name
"""A revision, or the name of a checkpoint."""
After = Annotated[int, Field(ge=0, le=2**53), WHOLE]
Amount = Annotated[int, Field(ge=1, le=1000), WHOLE]
Text = Annotated[str, Field(max_length=10_000)]


class Parameters(BaseModel):
    """Parameters of a request; others are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Nothing(Parameters):
    """For requests without parameters."""


P = TypeVar("P", bound=Parameters)
T = TypeVar("T")


def parse(parameters: type[P], given: dict[str, Any], *, strict: bool = False) -> P:
    """Validate the parameters of a request."""
    try:
        return parameters.model_validate(given, strict=strict)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        fields = {str(one["loc"][0]): one["msg"] for one in reversed(problems)}  # of a union, the first problem
        raise InvalidArguments("; ".join(f"{field}: {problem}" for field, problem in fields.items()), fields) from None


def cursor_of(*place: float | str) -> str:
    """The cursor of a page: the place of its last session in the list, such as its creation time and id."""
    return urlsafe_b64encode(to_json(place)).decode()


def read_cursor(cursor: str, kind: type[T]) -> T:
    """The place in a cursor."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor), type=kind)
    except ValueError:
        raise wrong_field("cursor", "should be the `next` of the previous page") from None


# Server-sent events.


def event(kind: str, data: bytes, position: str | None = None) -> ServerSentEvent:
    """An event with JSON data; clients that reconnect send the position of the last one."""
    return ServerSentEvent(data.decode(), event=kind, id=position, sep="\n")


class EventStream(EventSourceResponse):
    """A response that sends events as they occur.

    `work` is the task that makes them. It is not ended when the client disconnects: the request is in flight until it
    is done. A server that stops lets a stream end by itself, within its own limit for requests in flight.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[ServerSentEvent], work: asyncio.Task[None] | None = None) -> None:
        super().__init__(
            events,
            headers={"content-type": self.media_type},
            ping=HEARTBEAT_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="still here", sep="\n"),
            shutdown_grace_period=inf,
        )
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"connection"]  # up to the protocol
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
            if self._work is not None:
                await self._work
        finally:
            if self._work is not None:
                self._work.cancel()
                with suppress(asyncio.CancelledError):
                    await self._work


# Replies.


class AgentReply(msgspec.Struct, frozen=True):
    """The status of an agent."""

    phase: str
    """`idle`, `planning`, `executing`, `waiting_feedback`, `done`, `failed` or `cancelled`, or one of the author's."""
    question: str | None
    """The question that waits for an answer."""

    @classmethod
    def of(cls, status: AgentStatus) -> AgentReply:
        """A reply with an agent's status."""
        return cls(status.phase, status.question)


class Deleted(msgspec.Struct, frozen=True):
    deleted: str
    """The id of what was deleted."""
