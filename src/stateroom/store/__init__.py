"""Where state lives: the `Store` contract, the stores, and the suite that every store passes."""

from stateroom.store.contract import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.url import open_store

__all__ = [
    "NO_BLOBS",
    "Blobs",
    "Commit",
    "Entry",
    "Head",
    "Loaded",
    "Record",
    "Size",
    "Snapshot",
    "Store",
    "open_store",
]
