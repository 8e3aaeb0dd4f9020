"""How state changes: calls on a session, its log, revisions, forks, rewinds and expiry."""

from stateroom.session.history import History
from stateroom.session.journal import LogEntry
from stateroom.session.moment import Clock
from stateroom.session.program import Effect, Episode, Procedure, Program, Result, SessionInfo, Verdict
from stateroom.session.session import Checkpoint, Session
from stateroom.session.sessions import Sessions

__all__ = [
    "Checkpoint",
    "Clock",
    "Effect",
    "Episode",
    "History",
    "LogEntry",
    "Procedure",
    "Program",
    "Result",
    "Session",
    "SessionInfo",
    "Sessions",
    "Verdict",
]
