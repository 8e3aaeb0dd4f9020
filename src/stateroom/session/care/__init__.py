"""Care for a store: whether all in it can be read, how much it is, what of it may go, and copying it to another one.

All of it goes through the `Store` contract alone, so it works on every store.
"""

from stateroom.session.care.checking import check_session
from stateroom.session.care.copying import Copied, Copier
from stateroom.session.care.counting import Statistics, count
from stateroom.session.care.heads import each_session, every_head, side_by_side
from stateroom.session.care.migrating import Migrated, Migrator, kept_types
from stateroom.session.care.retention import Cut, Policy, Retention

__all__ = [
    "Copied",
    "Copier",
    "Cut",
    "Migrated",
    "Migrator",
    "Policy",
    "Retention",
    "Statistics",
    "check_session",
    "count",
    "each_session",
    "every_head",
    "kept_types",
    "side_by_side",
]
