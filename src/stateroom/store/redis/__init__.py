"""`redis://`: sessions in a Redis or Valkey server, a Sentinel group or a Cluster, for many workers at once."""

from stateroom.store.redis.store import RedisStore

__all__ = ["RedisStore"]
