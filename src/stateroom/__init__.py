"""Stateful environments for agents: every episode gets its own room."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateroom.agent import Agent, Context, Conversation, TaskState, Threads
    from stateroom.environment import Environment, Episode, Resource, SessionInfo, Task, TempFolder, Verdict, tool
    from stateroom.errors import StateroomError, ToolError
    from stateroom.model import Judge, Model, Policy
    from stateroom.session import Lifecycle, Session, Sessions
    from stateroom.state import Event, Merge, State, applies
    from stateroom.state.comparison import Comparison, compare
    from stateroom.store import open_store

__all__ = [
    "Agent",
    "Comparison",
    "Context",
    "Conversation",
    "Environment",
    "Episode",
    "Event",
    "Judge",
    "Lifecycle",
    "Merge",
    "Model",
    "Policy",
    "Resource",
    "Session",
    "SessionInfo",
    "Sessions",
    "State",
    "StateroomError",
    "Task",
    "TaskState",
    "TempFolder",
    "Threads",
    "ToolError",
    "Verdict",
    "applies",
    "compare",
    "open_store",
    "tool",
]

_HOMES = {
    "stateroom.agent": ("Agent", "Context", "Conversation", "TaskState", "Threads"),
    "stateroom.environment": (
        "Environment",
        "Episode",
        "Resource",
        "SessionInfo",
        "Task",
        "TempFolder",
        "Verdict",
        "tool",
    ),
    "stateroom.errors": ("StateroomError", "ToolError"),
    "stateroom.model": ("Judge", "Model", "Policy"),
    "stateroom.session": ("Lifecycle", "Session", "Sessions"),
    "stateroom.state": ("Event", "Merge", "State", "applies"),
    "stateroom.state.comparison": ("Comparison", "compare"),
    "stateroom.store": ("open_store",),
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use: most of what an import costs is pydantic's schema builder."""
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
