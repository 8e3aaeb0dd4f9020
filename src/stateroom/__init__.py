"""Stateful environments for agents: every episode gets its own room."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateroom.environment import Environment, Episode, Resource, SessionInfo, Task, TempFolder, Verdict, tool
    from stateroom.errors import StateroomError, ToolError
    from stateroom.session import Session, Sessions
    from stateroom.state import Event, Merge, State, applies
    from stateroom.store import open_store

__all__ = [
    "Environment",
    "Episode",
    "Event",
    "Merge",
    "Resource",
    "Session",
    "SessionInfo",
    "Sessions",
    "State",
    "StateroomError",
    "Task",
    "TempFolder",
    "ToolError",
    "Verdict",
    "applies",
    "open_store",
    "tool",
]

_HOMES = {
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
    "stateroom.session": ("Session", "Sessions"),
    "stateroom.state": ("Event", "Merge", "State", "applies"),
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
