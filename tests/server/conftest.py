"""A real server for the tests, on a port of its own, in the test's event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import uvicorn

from stateroom import Environment
from stateroom.gallery.counter import CounterEnvironment
from stateroom.server import Application, Options
from stateroom.server.running import bind, configured

SECRET = "a secret that is only good for tests"


@dataclass
class Served:
    """A server that runs, and a client that keeps cookies."""

    app: Application
    url: str
    client: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """The status and the decoded body of a reply."""
        async with self.client.post(f"{self.url}{path}", json={} if body is None else body, **options) as reply:
            return reply.status, await reply.json()

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.client.get(f"{self.url}{path}", **options) as reply:
            return reply.status, await reply.json()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server: `await serve(CounterEnvironment(), store="memory://", …)`; without an environment, counter."""
    async with AsyncExitStack() as stack:

        async def start(*environments: Environment[Any, Any], now: Any = None, **options: Any) -> Served:
            made = Options(secrets=options.pop("secrets", (SECRET,)), **options)
            clock = {} if now is None else {"now": now}
            app = Application(environments or (CounterEnvironment(),), made, **clock)
            return await stack.enter_async_context(_running(app))

        yield start


@asynccontextmanager
async def _running(app: Application) -> AsyncIterator[Served]:
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(configured(lambda: app, app.options))
    task = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0)
        if task.done():
            await task
    host, port = listening.getsockname()
    jar = aiohttp.CookieJar(unsafe=True)  # it keeps cookies of hosts without a name
    try:
        async with aiohttp.ClientSession(cookie_jar=jar) as client:
            yield Served(app, f"http://{host}:{port}", client)
    finally:
        server.should_exit = True
        await task
        listening.close()
