"""How state changes: calls on a session, its log, revisions, forks, rewinds and expiry."""

from typing import TYPE_CHECKING

from stateroom.lazy import lazy

if TYPE_CHECKING:
    from stateroom.session.agent import AgentInMemory, SessionAgent
    from stateroom.session.agent import ended_call as ended_call
    from stateroom.session.cached_session import CachedSession as CachedSession
    from stateroom.session.cached_session import Step as Step
    from stateroom.session.cached_session import new_session as new_session
    from stateroom.session.commit import ATTEMPTS as ATTEMPTS
    from stateroom.session.commit import back_off as back_off
    from stateroom.session.containment import contained as contained
    from stateroom.session.document import write_document as write_document
    from stateroom.session.episode import Episode, Verdict
    from stateroom.session.history import Checkpoint, History, Occurred, refold
    from stateroom.session.lifecycle import STANDARD, AgentStatus, Lifecycle, Update
    from stateroom.session.log import LogEntry
    from stateroom.session.log import read_entry as read_entry
    from stateroom.session.log import weight_of_snapshot as weight_of_snapshot
    from stateroom.session.parameters import INJECTED as INJECTED
    from stateroom.session.parameters import SHARED as SHARED
    from stateroom.session.parameters import SessionInfo
    from stateroom.session.program import Effect, Procedure, Program
    from stateroom.session.progress import Clock, Progress
    from stateroom.session.reader import Reader as Reader
    from stateroom.session.reader import StateAt as StateAt
    from stateroom.session.resource import Resource
    from stateroom.session.resource import check_resource as check_resource
    from stateroom.session.result import Code, Result
    from stateroom.session.runtime import Limits as Limits
    from stateroom.session.runtime import new_session_id
    from stateroom.session.session import Session
    from stateroom.session.sessions import WEEK as WEEK
    from stateroom.session.sessions import Sessions
else:
    __getattr__ = lazy(
        __name__,
        "stateroom.session.containment",
        "stateroom.session.parameters",
        "stateroom.session.lifecycle",
        "stateroom.session.resource",
        "stateroom.session.program",
        "stateroom.session.progress",
        "stateroom.session.runtime",
        "stateroom.session.log",
        "stateroom.session.document",
        "stateroom.session.history",
        "stateroom.session.result",
        "stateroom.session.commit",
        "stateroom.session.reader",
        "stateroom.session.cached_session",
        "stateroom.session.agent",
        "stateroom.session.episode",
        "stateroom.session.session",
        "stateroom.session.sessions",
        "stateroom.session.maintenance",
    )

__all__ = [
    "STANDARD",
    "AgentInMemory",
    "AgentStatus",
    "Checkpoint",
    "Clock",
    "Code",
    "Effect",
    "Episode",
    "History",
    "Lifecycle",
    "LogEntry",
    "Occurred",
    "Procedure",
    "Program",
    "Progress",
    "Resource",
    "Result",
    "Session",
    "SessionAgent",
    "SessionInfo",
    "Sessions",
    "Update",
    "Verdict",
    "new_session_id",
    "refold",
]
