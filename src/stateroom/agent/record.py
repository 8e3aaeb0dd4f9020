"""Where the agent's half of an episode is kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from stateroom.model import Item, Usage
from stateroom.session import AgentStatus, LogEntry, Update


class Record(Protocol):
    """Keeps what is said, and where the agent stands: a session, or `Notes` in memory."""

    @property
    def status(self) -> AgentStatus:
        """The agent's status."""

    async def say(self, update: Update, *, after: AgentStatus | None = None, **changes: Any) -> AgentStatus:
        """Add to the conversation; see `SessionAgent.say`."""

    async def compact(self, window: dict[str, Any], *, after: AgentStatus | None = None) -> AgentStatus:
        """Let the model's view start from here; see `SessionAgent.compact`."""

    async def said(self, since: int = 0) -> list[LogEntry]:
        """What was said, from a revision on; see `SessionAgent.said`."""


class Recalled(NamedTuple):
    """All that an agent has said and heard."""

    items: list[Item]
    usage: Usage | None
    """The tokens that its model took, as far as it told."""


async def recall(record: Record) -> Recalled:
    """The whole conversation in a record, whatever the model is still shown of it."""
    items: list[Item] = []
    usage: Usage | None = None
    for entry in await record.said() if record.status.said else ():
        if entry.kind == "message":
            items.extend(entry.facts["items"])
            if told := entry.facts.get("usage"):
                usage = (usage or Usage()) + Usage(**told)
    return Recalled(items, usage)
