"""`postgresql://`: sessions in a PostgreSQL database, durable, and shared by workers on any number of hosts."""

from stateroom.store.postgresql.store import PostgreSQLStore

__all__ = ["PostgreSQLStore"]
