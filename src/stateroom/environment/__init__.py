"""What authors write: environments, tools, tasks and verdicts."""

from stateroom.environment.environment import Environment
from stateroom.environment.registry import find_environment, load_class, registered
from stateroom.environment.task import Task
from stateroom.environment.tool import Tool, tool
from stateroom.session.program import Episode, Verdict

__all__ = ["Environment", "Episode", "Task", "Tool", "Verdict", "find_environment", "load_class", "registered", "tool"]
