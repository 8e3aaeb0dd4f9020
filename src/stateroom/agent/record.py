"""Where the agent's half of an episode is kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from stateroom.model import Item, Usage
from stateroom.session import LogEntry, Said, Stance


class Record(Protocol):
    """Keeps what is said, and where the agent stands: a session, or `Notes` in memory."""

    @property
    def agent(self) -> Stance:
        """Where the agent stands."""

    async def say(self, said: Said, *, after: Stance | None = None, **changes: Any) -> Stance:
        """Add to the conversation; see `Session.say`."""

    async def compact(self, window: dict[str, Any], *, after: Stance | None = None) -> Stance:
        """Let the model's view start from here; see `Session.compact`."""

    async def said(self, since: int = 0) -> list[LogEntry]:
        """What was said, from a revision on; see `Session.said`."""


class Recalled(NamedTuple):
    """All that an agent has said and heard."""

    items: list[Item]
    usage: Usage | None
    """The tokens that its model took, as far as it told."""


async def recall(record: Record) -> Recalled:
    """The whole conversation in a record, whatever the model is still shown of it."""
    items: list[Item] = []
    usage: Usage | None = None
    for entry in await record.said() if record.agent.said else ():
        if entry.kind == "message":
            items.extend(entry.facts["items"])
            if told := entry.facts.get("usage"):
                usage = (usage or Usage()) + Usage(**told)
    return Recalled(items, usage)
