"""What authors write: environments, tools, tasks and verdicts."""

from typing import TYPE_CHECKING

from stateroom.environment.environment import Environment, Task
from stateroom.environment.registry import find_environment, load_class, registered
from stateroom.environment.tool import RESERVED as RESERVED
from stateroom.environment.tool import Kept as Kept
from stateroom.environment.tool import Tool, tool
from stateroom.environment.tool import make_tool as make_tool
from stateroom.lazy import lazy
from stateroom.session import Resource, SessionInfo

if TYPE_CHECKING:
    from stateroom.environment.folder import TempFolder
    from stateroom.session import Episode, Verdict
else:
    __getattr__ = lazy(__name__, "stateroom.environment.folder", "stateroom.session")

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
