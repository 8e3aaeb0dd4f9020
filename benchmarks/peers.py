"""A lone durable step beside what others keep of one: LangGraph's savers and the sessions of OpenAI's Agents SDK."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from itertools import count, islice
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import RedisSession
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.environments import increment, seed_counter
from benchmarks.timing import Figure, interleaved, repeated, speedup
from stateroom import open_store
from stateroom.adapters.langgraph import StateroomSaver
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer

STEPS = 200

LONE = ("a lone step", 1.0)
OUR_SAVER = ("a lone step of our saver for LangGraph", 0.75)  # as fast as theirs: what it is for is more than one step

Step = Callable[[], Awaitable[object]]


async def steps() -> list[Figure]:
    """A lone durable step, against LangGraph's savers and the sessions of OpenAI's Agents SDK.

    Theirs save the minimum: one checkpoint with a number in it, or one short message. Ours is a call: a tool that ran
    on a state, with its result. The last lines save the same checkpoint with our saver for LangGraph. Redis runs
    without its append-only file.
    """
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory())
        postgresql = servers.enter_context(PostgreSQLServer(quick=False))
        redis = servers.enter_context(RedisServer())
        async with AsyncExitStack() as stack:
            file = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(f"{folder}/langgraph.db"))
            base = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(postgresql.url))
            await base.setup()
            small = SQLiteSession("one", f"{folder}/agents.db")
            stack.callback(small.close)
            quick = RedisSession.from_url("one", url=redis.url)
            stack.push_async_callback(quick.close)
            on_sqlite = await _ours(stack, f"sqlite:///{folder}/ours.db")
            on_postgresql = await _ours(stack, postgresql.url)
            on_redis = await _ours(stack, redis.url)
            our_file = await stack.enter_async_context(StateroomSaver.from_url(f"sqlite:///{folder}/saver.db"))
            our_base = await stack.enter_async_context(StateroomSaver.from_url(postgresql.url))
            return [
                await _ahead("SQLite", on_sqlite, "LangGraph's saver", saving(file)),
                await _ahead("SQLite", on_sqlite, "the Agents SDK's session", _adding(small)),
                await _ahead("PostgreSQL", on_postgresql, "LangGraph's saver", saving(base)),
                await _ahead("Redis", on_redis, "the Agents SDK's session", _adding(quick)),
                await _ahead("SQLite", saving(our_file), "LangGraph's saver", saving(file), OUR_SAVER),
                await _ahead("PostgreSQL", saving(our_base), "LangGraph's saver", saving(base), OUR_SAVER),
            ]


async def _ours(stack: AsyncExitStack, url: str) -> Step:
    session = await seed_counter(await stack.enter_async_context(open_store(url)))
    return lambda: increment(session)


def saving(saver: Any, texts: Iterable[str] = ()) -> Step:
    """A step of a LangGraph thread: it saves a number, and the messages so far if there is one for each step."""
    config: dict[str, Any] = {"configurable": {"thread_id": "one", "checkpoint_ns": ""}}
    messages: list[str] = []
    coming = iter(texts)
    numbers = count(1)

    async def step() -> None:
        nonlocal config
        number = next(numbers)
        checkpoint = empty_checkpoint()
        values: dict[str, Any] = {"value": number}
        messages.extend(islice(coming, 1))
        if messages:
            values["messages"] = list(messages)
        versions: dict[str, Any] = dict.fromkeys(values, number)
        checkpoint["channel_values"], checkpoint["channel_versions"] = values, versions
        config = await saver.aput(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, versions)

    return step


def _adding(session: Any) -> Step:
    return lambda: session.add_items([{"role": "user", "content": "add one to the counter"}])


async def _ahead(where: str, ours: Step, name: str, theirs: Step, bar: tuple[str, float] = LONE) -> Figure:
    what, least = bar
    their_seconds, our_seconds = await interleaved(lambda: repeated(theirs, STEPS), lambda: repeated(ours, STEPS), 7)
    return speedup(f"{what} on {where} against {name}", our_seconds, their_seconds, least)
