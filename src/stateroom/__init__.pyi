from .agent import (
    Agent as Agent,
    Context as Context,
    Conversation as Conversation,
    TaskState as TaskState,
    Threads as Threads,
)
from .environment import (
    Environment as Environment,
    Task as Task,
    TempFolder as TempFolder,
    tool as tool,
)
from .errors import (
    StateroomError as StateroomError,
    ToolError as ToolError,
)
from .model import (
    Judge as Judge,
    Model as Model,
    Policy as Policy,
)
from .notebook import (
    arun as arun,
    open as open,
    run as run,
    serve as serve,
)
from .session import (
    Ask as Ask,
    Clock as Clock,
    Episode as Episode,
    Lifecycle as Lifecycle,
    Resource as Resource,
    Session as Session,
    SessionInfo as SessionInfo,
    SessionLimits as SessionLimits,
    Sessions as Sessions,
    Verdict as Verdict,
)
from .state import (
    Comparison as Comparison,
    Event as Event,
    Merge as Merge,
    State as State,
    applies as applies,
    compare as compare,
)
from .store import open_store as open_store
from .version import __version__ as __version__
