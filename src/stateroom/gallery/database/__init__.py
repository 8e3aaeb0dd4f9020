"""database: answer questions about a real SQLite database, and change it; it is part of the session's state."""

from stateroom.gallery.database.environment import DatabaseEnvironment, DatabaseTask, SQLEnvironment
from stateroom.gallery.database.sqlite import Database

__all__ = ["Database", "DatabaseEnvironment", "DatabaseTask", "SQLEnvironment"]
