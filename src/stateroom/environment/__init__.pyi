from .environment import (
    Environment as Environment,
    Task as Task,
)
from .folder import TempFolder as TempFolder
from .registry import (
    find_environment as find_environment,
    load_class as load_class,
    registered as registered,
)
from .tool import (
    RESERVED as RESERVED,
    Injectable as Injectable,
    Tool as Tool,
    make_tool as make_tool,
    tool as tool,
)
