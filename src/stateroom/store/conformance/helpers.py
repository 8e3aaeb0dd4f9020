"""Helpers of the suite: steps that many tests take, and `Suite`, which runs the tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from stateroom.errors import StateroomError
from stateroom.store import (
    ALL_SESSIONS,
    Commit,
    Entry,
    Head,
    HeadFilter,
    Loaded,
    Order,
    Record,
    Size,
    Store,
    open_store,
)
from stateroom.store.conformance import make
from stateroom.store.conformance.make import LATER, NOW

T = TypeVar("T")

TIMEOUT = 120.0
"""Seconds after which a test fails."""

NAMES = [
    "o'clock",
    'say "hello"',
    "back`tick; DROP TABLE sessions; --",
    "per%cent_under*star?mark[a-z]",
    "a/b\\c:d{e}#f g&h=i",
    "ship 🚢 船 سفينة",
    "caf\u00e9",
    "cafe\u0301",
    "CASE",
    "case",
    "line\nbreak",
    " edges ",
    "n" * 200,
]
"""Ids that a careless store mixes up, cuts or misreads."""


async def append(
    store: Store,
    session: str,
    revision: int,
    call_id: str | None = None,
    *,
    at: float = NOW,
    body: bytes | None = None,
    expires: float | None = LATER,
    **fields: Any,
) -> None:
    """Append an entry as `make.entry` makes it, with other fields of a `Commit`."""
    await store.append(Commit(session, make.entry(revision, call_id, at=at, body=body), expires=expires, **fields))


async def outcome(call: Awaitable[T]) -> T | type[StateroomError]:
    """The result of a call, or the class of its error."""
    try:
        return await call
    except StateroomError as error:
        return type(error)


async def race(*calls: Awaitable[Any], flipped: int | bool) -> list[Any]:
    """The results of calls that begin together, in their order; if flipped, the last begins first."""
    done = await asyncio.gather(*(calls[::-1] if flipped else calls))
    return done[::-1] if flipped else done


async def check_refused(kind: type[StateroomError], call: Awaitable[object], **fields: object) -> None:
    """A call raises an error of a kind, with these fields."""
    with pytest.raises(kind) as error:
        await call
    assert {name: getattr(error.value, name) for name in fields} == fields


async def everything(store: Store, session: str) -> tuple[Head, list[Entry], list[Loaded], Record]:
    """All that a store returns for one session."""
    head = await store.head(session)
    loads = [await store.load(session, at) for at in range(head.revision + 1)]
    return head, await store.entries(session), loads, await store.maintenance.export(session)


async def size_of_blobs(store: Store) -> Size:
    """How much all blobs in the store are."""
    return (await store.maintenance.sizes())["blobs"]


async def list_all(
    store: Store, wanted: HeadFilter = ALL_SESSIONS, order: Order = "newest", *, limit: int
) -> list[Head]:
    """A whole list, page by page."""
    heads: list[Head] = []
    while page := await store.heads(wanted, order=order, after=heads[-1] if heads else None, limit=limit):
        assert len(page) <= limit, "a page is longer than its limit"
        assert not {head.id for head in page} & {head.id for head in heads}, "a head is listed twice"
        heads += page
    return heads


class Suite:
    """The base of every part of the suite.

    Tests are coroutines. Each runs in an event loop of its own, and gets a fresh store if it has a parameter `store`.
    """

    shared: ClassVar[bool] = True
    """Whether several stores that are open on one URL hold the same sessions."""
    durable: ClassVar[bool] = True
    """Whether sessions are still there after the store was closed and opened again."""
    increments: ClassVar[int] = 100
    """Entries that each of eight writers adds to one session at once; fewer for a slow store."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, test in [*vars(cls).items()]:
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _run_in_loop(test))

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """The URL of a fresh store."""
        raise NotImplementedError(
            "a subclass of StoreConformance needs a fixture `url` that returns the URL of a fresh store"
        )

    def needs_shared(self) -> None:
        """Skip a test of stores that share their sessions."""
        if not self.shared:
            pytest.skip("stores of this kind do not share sessions")

    def needs_durable(self) -> None:
        """Skip a test of stores that keep their sessions."""
        if not self.durable:
            pytest.skip("stores of this kind lose their sessions when they are closed")


def _run_in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as a function that pytest can call without a plugin."""
    signature = inspect.signature(test)
    wants_store = "store" in signature.parameters

    async def in_store(*args: Any, url: str, **kwargs: Any) -> None:
        async with open_store(url) as store:
            await test(*args, store=store, **kwargs)

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for((in_store if wants_store else test)(*args, **kwargs), TIMEOUT))

    if wants_store:  # pytest is to give the fixture `url` instead
        named = signature.parameters.items()
        parameters = [each.replace(name="url") if name == "store" else each for name, each in named]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
