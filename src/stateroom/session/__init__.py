"""How state changes: calls on a session, its log, revisions, forks, rewinds and expiry."""

from stateroom.session.history import Checkpoint, History
from stateroom.session.journal import LogEntry
from stateroom.session.lifecycle import STANDARD, Lifecycle
from stateroom.session.moment import Clock, Moment
from stateroom.session.notes import Notes
from stateroom.session.occurring import Occurred, refold
from stateroom.session.program import Code, Effect, Episode, Procedure, Program, Result, SessionInfo, Verdict
from stateroom.session.session import Session
from stateroom.session.sessions import Sessions, new_session_id
from stateroom.session.stance import Said, Stance

__all__ = [
    "STANDARD",
    "Checkpoint",
    "Clock",
    "Code",
    "Effect",
    "Episode",
    "History",
    "Lifecycle",
    "LogEntry",
    "Moment",
    "Notes",
    "Occurred",
    "Procedure",
    "Program",
    "Result",
    "Said",
    "Session",
    "SessionInfo",
    "Sessions",
    "Stance",
    "Verdict",
    "new_session_id",
    "refold",
]
