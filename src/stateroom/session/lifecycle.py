"""An agent's lifecycle: what it may be doing, and what leads from one to another, as a declared table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from stateroom.errors import InvalidMove

Table = Mapping[tuple[str, str], str]
"""The phase that an agent comes to, by the phase that it is in and the event."""


class Lifecycle:
    """The moves that an agent can make; each is in the log of its session, and any other is an error."""

    start: ClassVar[str] = "idle"
    """The phase that every agent begins in."""

    def __init__(self, table: Table) -> None:
        self.table = MappingProxyType(dict(table))

    def after(self, phase: str, event: str) -> str:
        """The phase that an event leads to; `InvalidMove` if it leads nowhere from this one."""
        found = self.table.get((phase, event))
        if found is None:
            raise InvalidMove(phase, event, ", ".join(self.possible(phase)) or "none")
        return found

    def possible(self, phase: str) -> list[str]:
        """The events that lead somewhere from a phase."""
        return [event for start, event in self.table if start == phase]

    def with_moves(self, table: Table) -> Lifecycle:
        """A lifecycle with more moves, or other ones, than this."""
        return Lifecycle({**self.table, **table})


_AT_WORK = ("idle", "planning", "executing", "waiting_feedback")

STANDARD = Lifecycle(
    {
        ("idle", "new_task"): "planning",
        ("planning", "plan_ready"): "executing",
        ("executing", "step_complete"): "executing",
        ("executing", "needs_input"): "waiting_feedback",
        ("waiting_feedback", "input_received"): "executing",
        ("executing", "task_complete"): "done",
        ("waiting_feedback", "task_complete"): "done",  # whoever was asked has nothing more to say
        **{(phase, "limit_reached"): "done" for phase in _AT_WORK},
        **{(phase, "fail"): "failed" for phase in _AT_WORK},
        **{(phase, "cancel"): "cancelled" for phase in _AT_WORK},
        **{(phase, "new_task"): "planning" for phase in ("done", "failed", "cancelled")},  # the next turn
    }
)
"""The lifecycle of every agent whose environment declares no other."""
