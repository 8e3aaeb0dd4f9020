"""`sqlite:///path`: sessions in one file, durable, and safe to share between processes.

One thread owns the one connection. It takes work that has gathered and commits the writes in one transaction, so that
sessions which write at the same time share the cost of reaching the disk. An append is a row put into a view, whose
trigger checks and moves the head: a batch of appends is one statement, and while SQLite works on it the interpreter is
free to run the next calls.
"""

from stateroom.store.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
