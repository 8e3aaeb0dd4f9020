"""Short ways to make the parts of a session, and a store by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from stateroom.errors import StoreUnavailable
from stateroom.store import Entry, Head, Store, open_store, store_class
from tests.patience import PATIENCE

T = TypeVar("T")

FAR = 1e12
"""A time that does not come."""


def head(session: str = "room", revision: int = 1, expires: float = FAR, **fields: Any) -> Head:
    """The head of a session; a fork's parent is forked at revision 1, unless told otherwise."""
    if "parent" in fields:
        fields.setdefault("parent_revision", 1)
    given = {"environment": "env", "owner": "owner", "created": 0.0, **fields}
    return Head(id=session, expires=expires, revision=revision, **given)


def entry(revision: int, call_id: str | None = None, *, body: bytes = b"body", at: float = 0.0) -> Entry:
    return Entry(revision, "call", at, body, call_id)


async def begin(store: Store, *sessions: str) -> None:
    """Create sessions of one entry: `room`, if none is named."""
    for session in sessions or ("room",):
        await store.create(head(session), [entry(1)])


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Any]:
    """The store itself, which tries nothing twice."""
    store = await store_class(url).open(url)
    try:
        yield store
    finally:
        await store.close()


async def visit(url: str) -> None:
    """Open a store, and close it again."""
    async with open_store(url):
        pass


async def at_last(work: Callable[[], Awaitable[T]], *passing: type[Exception]) -> T:
    """What comes of work that is tried until the server is there, and these errors have passed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreUnavailable, *passing):
                return await work()
            await asyncio.sleep(0.01)
