from .agent import (
    AgentInMemory as AgentInMemory,
    SessionAgent as SessionAgent,
    ended_call as ended_call,
)
from .cached_session import (
    MAX_READS as MAX_READS,
    CachedSession as CachedSession,
    PreparedCommit as PreparedCommit,
    new_session as new_session,
)
from .commit import (
    ATTEMPTS as ATTEMPTS,
    back_off as back_off,
)
from .containment import (
    Cause as Cause,
    cause_of as cause_of,
    code_of as code_of,
    contained as contained,
)
from .edit import Edit as Edit
from .environment import (
    Effect as Effect,
    Procedure as Procedure,
    SessionEnvironment as SessionEnvironment,
    SessionTool as SessionTool,
)
from .episode import (
    Episode as Episode,
    Verdict as Verdict,
)
from .history import (
    Checkpoint as Checkpoint,
    EventRecord as EventRecord,
    History as History,
    refold as refold,
)
from .lifecycle import (
    STANDARD as STANDARD,
    AgentStatus as AgentStatus,
    Lifecycle as Lifecycle,
    Update as Update,
    text_of as text_of,
)
from .log import (
    COPIED as COPIED,
    KINDS as KINDS,
    SPOKEN as SPOKEN,
    VERDICT as VERDICT,
    Document as Document,
    LogEntry as LogEntry,
    checked_name as checked_name,
    read_entry as read_entry,
    weight_of_snapshot as weight_of_snapshot,
    write_body as write_body,
    write_document as write_document,
)
from .log_reader import (
    EntryData as EntryData,
    ForkPoint as ForkPoint,
    LogPage as LogPage,
    LogReader as LogReader,
    SessionSummary as SessionSummary,
    cut as cut,
    entry_data as entry_data,
    entry_line as entry_line,
    item_lines as item_lines,
    read_page as read_page,
    written_arguments as written_arguments,
)
from .maintenance.check import check_session as check_session
from .maintenance.copy import (
    Copied as Copied,
    Copier as Copier,
)
from .maintenance.heads import (
    Statistics as Statistics,
    count_sessions as count_sessions,
    each_session as each_session,
    side_by_side as side_by_side,
)
from .maintenance.migration import (
    Migrated as Migrated,
    Migrator as Migrator,
    kept_types as kept_types,
)
from .maintenance.retention import (
    Cut as Cut,
    Retention as Retention,
    RetentionPolicy as RetentionPolicy,
)
from .parameters import (
    INJECTED as INJECTED,
    SHARED as SHARED,
    Ask as Ask,
    SessionInfo as SessionInfo,
)
from .progress import (
    Clock as Clock,
    Progress as Progress,
)
from .reader import (
    Reader as Reader,
    StateAt as StateAt,
)
from .recorded_call import (
    NOT_REPEATABLE as NOT_REPEATABLE,
    RecordedCall as RecordedCall,
    merged as merged,
    parsed as parsed,
    recorded_calls as recorded_calls,
    result_of as result_of,
    same as same,
)
from .resource import (
    Resource as Resource,
    check_resource as check_resource,
)
from .result import (
    Code as Code,
    Result as Result,
    result_of_failure as result_of_failure,
    unknown_tool as unknown_tool,
)
from .runtime import (
    WEEK as WEEK,
    MaxLog as MaxLog,
    MaxState as MaxState,
    SessionLimits as SessionLimits,
    Timeout as Timeout,
    new_session_id as new_session_id,
    shared_environment as shared_environment,
)
from .session import (
    Pending as Pending,
    Session as Session,
)
from .sessions import (
    SHARED_IDS as SHARED_IDS,
    Sessions as Sessions,
)
from .sync import (
    BackgroundLoop as BackgroundLoop,
    Blocking as Blocking,
    LogEntries as LogEntries,
)
from .verification import Rescorer as Rescorer
