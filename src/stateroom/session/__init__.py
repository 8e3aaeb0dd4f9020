"""How state changes: calls on a session, its log, revisions, forks, rewinds and expiry."""

from stateroom.session.history import Checkpoint, History
from stateroom.session.journal import LogEntry
from stateroom.session.moment import Clock, Moment
from stateroom.session.occurring import Occurred, refold
from stateroom.session.program import Code, Effect, Episode, Procedure, Program, Result, SessionInfo, Verdict
from stateroom.session.session import Session
from stateroom.session.sessions import Sessions, new_session_id

__all__ = [
    "Checkpoint",
    "Clock",
    "Code",
    "Effect",
    "Episode",
    "History",
    "LogEntry",
    "Moment",
    "Occurred",
    "Procedure",
    "Program",
    "Result",
    "Session",
    "SessionInfo",
    "Sessions",
    "Verdict",
    "new_session_id",
    "refold",
]
