"""Stateful environments for agents: every episode gets its own room."""

from typing import TYPE_CHECKING

from stateroom.lazy import lazy

if TYPE_CHECKING:
    from stateroom.agent import Agent, Context, Conversation, TaskState, Threads
    from stateroom.environment import Environment, Episode, Resource, SessionInfo, Task, TempFolder, Verdict, tool
    from stateroom.errors import StateroomError, ToolError
    from stateroom.model import Judge, Model, Policy
    from stateroom.session import Lifecycle, Session, Sessions
    from stateroom.state import Event, Merge, State, applies
    from stateroom.state.comparison import Comparison, compare
    from stateroom.store import open_store
else:
    __getattr__ = lazy(
        __name__,
        "stateroom.errors",
        "stateroom.state",
        "stateroom.environment",
        "stateroom.store",
        "stateroom.session",
        "stateroom.model",
        "stateroom.agent",
        "stateroom.state.comparison",
    )

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
