"""database: answer questions about a real SQLite database in the session's state, and change it."""

from stateroom.gallery.database.environment import DatabaseEnvironment, DatabaseTask, SQLEnvironment
from stateroom.gallery.database.sqlite import Database

__all__ = ["Database", "DatabaseEnvironment", "DatabaseTask", "SQLEnvironment"]
