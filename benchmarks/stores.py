"""Fresh stores of each kind, with the servers that they need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

from stateroom import open_store
from stateroom.store import Store
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import CREDENTIALS, S3Server


@asynccontextmanager
async def fresh_stores() -> AsyncIterator[dict[str, Store]]:
    """A fresh store of each kind, by name."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory())
        urls = {
            "SQLite": f"sqlite:///{folder}/rooms.db",
            "Redis": servers.enter_context(RedisServer()).url,
            "PostgreSQL": servers.enter_context(PostgreSQLServer()).url,
            "files": f"file://{folder}/rooms",
            "S3": servers.enter_context(S3Server()).url,
        }
        async with open_stores(urls) as stores:
            yield stores


@asynccontextmanager
async def open_stores(urls: Mapping[str, str]) -> AsyncIterator[dict[str, Store]]:
    """Stores by name, some of them perhaps in the bucket of the tests."""
    os.environ.update(CREDENTIALS)
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(open_store(url)) for name, url in urls.items()}
