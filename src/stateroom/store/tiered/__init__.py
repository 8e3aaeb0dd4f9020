"""`tiered://?warm=URL&cold=URL`: active sessions in a fast warm store, all others in a large cold one."""

from stateroom.store.tiered.store import TieredStore

__all__ = ["TieredStore"]
