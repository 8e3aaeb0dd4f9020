"""What an agent says where nothing is kept: in memory, for as long as somebody holds on to it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from stateroom.errors import Conflict
from stateroom.session.journal import LogEntry
from stateroom.session.lifecycle import STANDARD, Lifecycle
from stateroom.session.stance import Said, Stance


class Notes:
    """The agent's half of an episode whose session is kept elsewhere, or not at all; see `Agency` for what it does."""

    def __init__(self, line: str = "", lifecycle: Lifecycle = STANDARD) -> None:
        self.agent = Stance(line=line)
        self._lifecycle = lifecycle
        self._entries: list[LogEntry] = []

    async def say(self, said: Said, *, after: Stance | None = None, **changes: Any) -> Stance:
        return self._add("message", said.facts(), self.agent.after(said, self._lifecycle, **changes), after)

    async def compact(self, window: dict[str, Any], *, after: Stance | None = None) -> Stance:
        return self._add("compaction", window, replace(self.agent, view=len(self._entries) + 1), after)

    async def said(self, since: int = 0) -> list[LogEntry]:
        return self._entries[max(since - 1, 0) :]

    def _add(self, kind: str, facts: dict[str, Any], stance: Stance, expected: Stance | None) -> Stance:
        if expected is not None and expected != self.agent:
            raise Conflict("", len(self._entries), "somebody else has gone on with the agent's work")
        self._entries.append(LogEntry(len(self._entries) + 1, kind, 0.0, None, facts))
        self.agent = stance
        return stance
