"""Maintenance of a store: check it, measure it, prune it, migrate it, and copy it to another store.

All of it goes through the `Store` contract alone, so it works on every store.
"""

from stateroom.session.maintenance.check import check_session
from stateroom.session.maintenance.copy import Copied, Copier
from stateroom.session.maintenance.heads import Statistics, count_sessions, each_session, side_by_side
from stateroom.session.maintenance.migration import Migrated, Migrator, kept_types
from stateroom.session.maintenance.retention import Cut, Retention, RetentionPolicy

__all__ = [
    "Copied",
    "Copier",
    "Cut",
    "Migrated",
    "Migrator",
    "Retention",
    "RetentionPolicy",
    "Statistics",
    "check_session",
    "count_sessions",
    "each_session",
    "kept_types",
    "side_by_side",
]
