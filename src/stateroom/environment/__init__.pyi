from .environment import (
    ENV_ARGS as ENV_ARGS,
    Environment as Environment,
)
from .folder import TempFolder as TempFolder
from .registry import (
    TypedText as TypedText,
    accepted_arguments as accepted_arguments,
    find_environment as find_environment,
    load_class as load_class,
    make_environment as make_environment,
    registered as registered,
    variant_of as variant_of,
)
from .sessions import (
    StoreSessions as StoreSessions,
    SyncSessions as SyncSessions,
)
from .task import Task as Task
from .tools import (
    RESERVED as RESERVED,
    Injectable as Injectable,
    Tool as Tool,
    make_tool as make_tool,
    tool as tool,
)
