from .check import (
    CheckReport as CheckReport,
    Finding as Finding,
    check_environment as check_environment,
)
from .comparison import (
    Divergence as Divergence,
    RunComparison as RunComparison,
    TaskComparison as TaskComparison,
    TaskProfile as TaskProfile,
    compare_runs as compare_runs,
    profile_runs as profile_runs,
)
from .description import (
    RunDescription as RunDescription,
    environment_of_run as environment_of_run,
)
from .engines import Finished as Finished
from .episode import (
    EpisodeEnd as EpisodeEnd,
    EpisodeStart as EpisodeStart,
    run_episode as run_episode,
)
from .failures import ToolFailures as ToolFailures
from .files import (
    RunFiles as RunFiles,
    TreeFiles as TreeFiles,
    ensure_new as ensure_new,
)
from .index import RunIndex as RunIndex
from .metrics import (
    SOLVED as SOLVED,
    EpisodeMetrics as EpisodeMetrics,
    Price as Price,
    agent_metrics as agent_metrics,
    aggregate as aggregate,
    concat_runs as concat_runs,
    numbers as numbers,
    pass_at_k as pass_at_k,
    standard_error as standard_error,
)
from .options import (
    CollectOptions as CollectOptions,
    EnvArgs as EnvArgs,
    EnvironmentOptions as EnvironmentOptions,
    EnvironmentSpec as EnvironmentSpec,
    EpisodeOptions as EpisodeOptions,
    ModelOptions as ModelOptions,
    RunOptions as RunOptions,
    new_path as new_path,
)
from .plan import (
    EPOCH as EPOCH,
    EpisodePlan as EpisodePlan,
    RunPlan as RunPlan,
    agent_ref as agent_ref,
    default_store as default_store,
    plan_run as plan_run,
)
from .progress import (
    BAR_DELAY_SECONDS as BAR_DELAY_SECONDS,
    CONTROLS as CONTROLS,
    ProgressBar as ProgressBar,
    Terminal as Terminal,
    run_with_progress as run_with_progress,
    visible as visible,
)
from .replay import (
    Replay as Replay,
    ReplayDifference as ReplayDifference,
    replay_rollouts as replay_rollouts,
    replay_session as replay_session,
)
from .rescore import (
    RescoreReport as RescoreReport,
    names_sessions as names_sessions,
    rescore_rollouts as rescore_rollouts,
    score_failures as score_failures,
    unscored_rows as unscored_rows,
)
from .result import (
    EpisodeResult as EpisodeResult,
    RunResult as RunResult,
)
from .rows import (
    CHOSEN as CHOSEN,
    NODE as NODE,
    PARENT as PARENT,
    SESSION as SESSION,
    Key as Key,
    Row as Row,
    given_row as given_row,
    key_of as key_of,
    verdict_fields as verdict_fields,
)
from .runner import (
    Report as Report,
    ResumePlan as ResumePlan,
    run as run,
)
from .runs import (
    UNREADABLE as UNREADABLE,
    RunSummary as RunSummary,
    Said as Said,
    StoredEpisode as StoredEpisode,
    StoredRun as StoredRun,
    find_runs as find_runs,
    with_changes as with_changes,
)
from .scorer import reads_only_the_response as reads_only_the_response
from .search import (
    COLUMNS as COLUMNS,
    EpisodeFilter as EpisodeFilter,
    Search as Search,
)
from .source import (
    SourceRow as SourceRow,
    read_source as read_source,
)
from .tasks import (
    RemoteEnvironment as RemoteEnvironment,
    checked_row as checked_row,
    example_file as example_file,
    find_tasks as find_tasks,
    generate_tasks as generate_tasks,
    has_prompt as has_prompt,
    missing_prompts as missing_prompts,
    read_tasks as read_tasks,
)
from .trees import (
    Beam as Beam,
    BestOf as BestOf,
    BranchOptions as BranchOptions,
    BranchPlan as BranchPlan,
    Budget as Budget,
    GrownTree as GrownTree,
    MonteCarlo as MonteCarlo,
    Node as Node,
    Rule as Rule,
    Tree as Tree,
    TreeReport as TreeReport,
    branch as branch,
    plan_branches as plan_branches,
    read_trees as read_trees,
)
