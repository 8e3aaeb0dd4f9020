"""Stores that nobody used before, of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tests.servers.postgresql import fresh_schema


@contextmanager
def fresh_store(kind: str, server_url: Callable[[str], str], folder: Path) -> Iterator[str]:
    """The URL of a store that nobody used before; `server_url` is asked for `redis_url` and its like when needed."""
    name = uuid4().hex
    match kind:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{folder / name}.db"
        case "file":
            yield f"file://{folder / name}"
        case "s3":
            address, _, options = server_url("s3_url").partition("?")
            yield f"{address}/{name}?{options}"
        case "redis":
            yield f"{server_url('redis_url')}?prefix={name}:"
        case "postgresql":
            with fresh_schema(server_url("postgresql_url")) as url:
                yield url
        case _:
            yield f"tiered://?warm=sqlite:///{folder / name}.db&cold=file://{folder / name}&cool=1"
