"""Where state lives: the `Store` contract, the stores, and the suite that every store passes."""

from stateroom.store.contract import Entry, Head, Loaded, Snapshot, Store
from stateroom.store.url import open_store

__all__ = ["Entry", "Head", "Loaded", "Snapshot", "Store", "open_store"]
