"""Stateful environments for agents: every episode gets its own room."""

from stateroom.environment import Environment, Episode, Task, Verdict, tool
from stateroom.errors import StateroomError, ToolError
from stateroom.session import Session, Sessions
from stateroom.state import State
from stateroom.store import open_store

__all__ = [
    "Environment",
    "Episode",
    "Session",
    "Sessions",
    "State",
    "StateroomError",
    "Task",
    "ToolError",
    "Verdict",
    "open_store",
    "tool",
]
