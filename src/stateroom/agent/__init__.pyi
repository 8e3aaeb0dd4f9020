from .agent import (
    MAX_STEPS as MAX_STEPS,
    Agent as Agent,
    AgentLog as AgentLog,
    Outcome as Outcome,
    Workspace as Workspace,
    WrappedWorkspace as WrappedWorkspace,
)
from .calls import (
    call_tool as call_tool,
    output_text as output_text,
)
from .context import (
    Anchor as Anchor,
    Context as Context,
    Conversation as Conversation,
)
from .counters import (
    Estimate as Estimate,
    Tiktoken as Tiktoken,
    TokenCounter as TokenCounter,
    TokenizerFile as TokenizerFile,
)
from .loop import (
    WAITING as WAITING,
    OnItems as OnItems,
    Trajectory as Trajectory,
    TurnStatus as TurnStatus,
    act as act,
    run as run,
)
from .plan import (
    Step as Step,
    TaskState as TaskState,
)
from .simulated_user import (
    SimulatedUser as SimulatedUser,
    UserSide as UserSide,
)
from .strategies import (
    Bounds as Bounds,
    ClearToolResults as ClearToolResults,
    DropOldest as DropOldest,
    KeepLastTurns as KeepLastTurns,
    Strategy as Strategy,
    Summarise as Summarise,
)
from .threads import (
    ItemPage as ItemPage,
    Thread as Thread,
    ThreadEnvironment as ThreadEnvironment,
    Threads as Threads,
)
from .transcripts import (
    Times as Times,
    Utterance as Utterance,
    recall as recall,
    request_of as request_of,
    task_items as task_items,
    transcript as transcript,
)
from .window import (
    Size as Size,
    Window as Window,
    units_of as units_of,
)
