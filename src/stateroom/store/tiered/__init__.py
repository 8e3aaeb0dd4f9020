"""`tiered://?warm=URL&cold=URL`: quick sessions in a warm store, all others in a cold one.

The rooms of a process are the hot tier: it has the states it works on in memory. Under them, `warm` is a store that is
quick (Redis, SQLite) and `cold` one that is large (PostgreSQL, objects); each may be any store. `durable` says which of
them makes a commit durable, and with it what the other is for.

- `durable=warm`, the default: a session that is worked on is in the warm tier, and moves to the cold one when nothing
  has been added to it for `cool` seconds (3600 unless given). A commit is as durable as the warm tier is. Without the
  warm tier, what rests in the cold one can be read; without the cold tier, what is warm goes on. See `moving`.
- `durable=cold`: every session is in the cold tier, and the warm one has copies that are quick to read, for `cool`
  seconds after a commit. A commit is as durable as the cold tier is. Without the warm tier everything goes on; without
  the cold tier nothing does. See `caching`.

An & in the URL of a tier is written %26, and each tier has its own `compress`, `keys` and `patience`.
"""

from stateroom.store.tiered.store import TieredStore

__all__ = ["TieredStore"]
