"""What authors write: environments, tools, tasks and verdicts."""

from stateroom.environment.environment import Environment
from stateroom.environment.folder import TempFolder
from stateroom.environment.registry import find_environment, load_class, registered
from stateroom.environment.task import Task
from stateroom.environment.tool import Tool, tool
from stateroom.session.episode import Episode, Verdict
from stateroom.session.parameters import SessionInfo
from stateroom.session.resource import Resource

__all__ = [
    "Environment",
    "Episode",
    "Resource",
    "SessionInfo",
    "Task",
    "TempFolder",
    "Tool",
    "Verdict",
    "find_environment",
    "load_class",
    "registered",
    "tool",
]
