"""Where state lives: the `Store` contract, the stores, and the suite that every store passes."""

from stateroom.errors import (
    BadData,
    Conflict,
    DuplicateCall,
    ForeignStore,
    SessionClosed,
    SessionExpired,
    SessionLeased,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
    UnknownStore,
)
from stateroom.store.contract import Maintenance, Store
from stateroom.store.records import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Status
from stateroom.store.url import open_store, parse_url, store_class, without_secrets
from stateroom.store.wrapper import OPERATIONS, Work, WrappedStore

__all__ = [
    "NO_BLOBS",
    "OPERATIONS",
    "BadData",
    "Blobs",
    "Commit",
    "Conflict",
    "DuplicateCall",
    "Entry",
    "ForeignStore",
    "Head",
    "Loaded",
    "Maintenance",
    "Record",
    "SessionClosed",
    "SessionExpired",
    "SessionLeased",
    "Size",
    "Snapshot",
    "Status",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "UnknownRevision",
    "UnknownSession",
    "UnknownStore",
    "Work",
    "WrappedStore",
    "open_store",
    "parse_url",
    "store_class",
    "without_secrets",
]
