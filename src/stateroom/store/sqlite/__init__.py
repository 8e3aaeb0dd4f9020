"""`sqlite:///path`: sessions in one file, durable, and safe to share between processes."""

from stateroom.store.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
