"""`redis://`: sessions in a Redis or Valkey server, a Sentinel group or a Cluster, for many workers at once.

| module | its one job |
|---|---|
| `address` | what a URL means, and the link to what it names |
| `link` | commands out and answers in: all that is asked in one turn of the loop goes out together |
| `layout` | which keys there are, and how heads and entries lie in them |
| `scripts` | what happens on the server: one Lua script for each step that must be whole |
| `index` | which sessions there are, by age and by expiry |
| `lives` | how sessions begin and end |
| `care` | whole sessions out, sizes, orphans |
| `store` | the contract |
"""

from stateroom.store.redis.store import RedisStore

__all__ = ["RedisStore"]
