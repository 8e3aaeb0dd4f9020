"""What Redis and PostgreSQL cost: calls of many sessions at once and of one alone, against the bare driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import redis.asyncio

from benchmarks.environments import COUNTER_TASK, increment
from benchmarks.timing import Figure, elapsed, interleaved, speedup
from stateroom import Sessions, open_store
from stateroom.gallery import CounterEnvironment
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer

SESSIONS, STEPS = 64, 40
LONE = 400
CONNECTIONS = 16
"""With which the bare PostgreSQL loop is quickest on two cores; with 8 or 64 it is slower."""

LUA = """
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'revision', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
return 1
"""

SQL = """
WITH moved AS (UPDATE heads SET revision = %(new)s WHERE id = %(id)s AND revision = %(old)s RETURNING id)
INSERT INTO entries (session, revision, body) SELECT id, %(new)s, %(body)s FROM moved
"""

Append = Callable[[str, int, bytes], Awaitable[None]]
"""Appends to a session, if it is at the revision before."""


async def on_redis() -> list[Figure]:
    """Calls on Redis, of 64 sessions at once and of one alone, against the bare driver.

    The bare driver compares the revision, moves it and appends the same bytes, in one round trip. Our call also runs
    the tool, checks the state and stores the result. It is faster for many sessions because it batches concurrent
    commits.
    """
    with RedisServer() as server:
        async with _bare_redis(server.url) as append:
            return await _compared("Redis", server.url, append, 1.5)


async def on_postgresql() -> list[Figure]:
    """Calls on PostgreSQL, of 64 sessions at once and of one alone, against the bare driver.

    The bare driver does the same as in `redis`.
    """
    with PostgreSQLServer(quick=False) as server:
        async with _bare_postgresql(server.url) as append:
            return await _compared("PostgreSQL", server.url, append, 1.2)


@asynccontextmanager
async def _bare_redis(url: str) -> AsyncIterator[Append]:
    async with redis.asyncio.Redis.from_url(url) as client:
        script = await client.script_load(LUA)
        for number in range(SESSIONS):
            await client.hset(f"bare{{{number}}}", "revision", "0")

        async def append(session: str, revision: int, body: bytes) -> None:
            keys = f"bare{{{session}}}", f"bare{{{session}}}:log"
            done = await client.evalsha(script, 2, *keys, revision - 1, revision, body)
            assert done == 1

        yield append


@asynccontextmanager
async def _bare_postgresql(url: str) -> AsyncIterator[Append]:
    async with AsyncExitStack() as stack:
        free: asyncio.LifoQueue[psycopg.AsyncConnection[Any]] = asyncio.LifoQueue()
        for _ in range(CONNECTIONS):
            opened = await psycopg.AsyncConnection.connect(url, autocommit=True)
            free.put_nowait(await stack.enter_async_context(opened))
        await opened.execute("CREATE TABLE heads (id text PRIMARY KEY, revision bigint)")
        await opened.execute(
            "CREATE TABLE entries (session text, revision bigint, body bytea, PRIMARY KEY (session, revision))"
        )
        for number in range(SESSIONS):
            await opened.execute("INSERT INTO heads VALUES (%s, 0)", (str(number),))

        async def append(session: str, revision: int, body: bytes) -> None:
            connection = await free.get()
            values = {"id": session, "old": revision - 1, "new": revision, "body": body}
            cursor = await connection.execute(SQL, values, prepare=True)
            assert cursor.rowcount == 1
            free.put_nowait(connection)

        yield append


async def _compared(name: str, url: str, append: Append, bar: float) -> list[Figure]:
    async with open_store(url) as store:
        sessions = Sessions(CounterEnvironment(), store)
        handles = [await sessions.seed(COUNTER_TASK) for _ in range(SESSIONS)]
        await increment(handles[0], 30)  # past the tool's first runs on a thread
        body = (await store.entries(handles[0].id, after=handles[0].revision - 1))[0].body
        written = [0] * SESSIONS

        async def bare(number: int, times: int) -> None:
            for _ in range(times):
                written[number] += 1
                await append(str(number), written[number], body)

        async def bare_many() -> float:
            appends = asyncio.gather(*(bare(number, STEPS) for number in range(SESSIONS)))
            return await elapsed(appends) / (STEPS * SESSIONS)

        async def our_many() -> float:
            calls = asyncio.gather(*(increment(handle, STEPS) for handle in handles))
            return await elapsed(calls) / (STEPS * SESSIONS)

        async def bare_lone() -> float:
            return await elapsed(bare(0, LONE)) / LONE

        async def our_lone() -> float:
            return await elapsed(increment(handles[0], LONE)) / LONE

        many = await interleaved(bare_many, our_many, rounds=15)
        lone = await interleaved(bare_lone, our_lone, rounds=15)
    return [
        speedup(f"calls/s on {name}, 64 sessions, against the bare driver", many[1], many[0], bar),
        speedup(f"calls/s on {name}, one session, against the bare driver", lone[1], lone[0], 0.6),
    ]
