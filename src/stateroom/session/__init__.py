"""How state changes: calls on a session, its log, revisions, forks, rewinds and expiry."""

from stateroom.session.agent import AgentInMemory, SessionAgent
from stateroom.session.episode import Episode, Verdict
from stateroom.session.history import Checkpoint, History, Occurred, refold
from stateroom.session.lifecycle import STANDARD, AgentStatus, Lifecycle, Update
from stateroom.session.log import LogEntry
from stateroom.session.parameters import SessionInfo
from stateroom.session.program import Effect, Procedure, Program
from stateroom.session.progress import Clock, Progress
from stateroom.session.result import Code, Result
from stateroom.session.runtime import new_session_id
from stateroom.session.session import Session
from stateroom.session.sessions import Sessions

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
