"""Shared parts of stores with many concurrent callers: draining on close, batches, answers, and work on many items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from inspect import iscoroutinefunction
from operator import attrgetter
from typing import Any, TypeVar

from stateroom.errors import StoreUnavailable
from stateroom.store.contract import Maintenance, Store

T = TypeVar("T")
R = TypeVar("R")


class Gate:
    """Admits operations until a store closes; closing waits for those that are under way."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inside = 0
        self._closed: asyncio.Event | None = None
        """None while the store is open; set when no operation is left."""

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def __enter__(self) -> None:
        if self._closed is not None:
            raise StoreUnavailable(f"{self._name} is closed")
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._closed is not None and not self._inside:
            self._closed.set()

    async def close(self) -> None:
        """Refuse new operations, and wait for those under way."""
        if self._closed is None:
            self._closed = asyncio.Event()
            if not self._inside:
                self._closed.set()
        await self._closed.wait()


C = TypeVar("C", bound=type[Store] | type[Maintenance])


def gated(cls: C) -> C:
    """Let all operations of a store, or of its maintenance, pass the gate in the store's attribute `gate`.

    An operation must not call another one: a gate that is closing refuses that.
    """
    contract, gate = (Store, "gate") if issubclass(cls, Store) else (Maintenance, "store.gate")
    for name, method in [*vars(cls).items()]:
        if name in vars(contract) and name not in ("open", "close") and iscoroutinefunction(method):
            setattr(cls, name, _through_gate(method, attrgetter(gate)))
    return cls


def _through_gate(method: Callable[..., Awaitable[T]], gate_of: Callable[[Any], Gate]) -> Callable[..., Awaitable[T]]:
    @wraps(method)
    async def run(self: Any, /, *args: Any, **kwargs: Any) -> T:
        with gate_of(self):
            return await method(self, *args, **kwargs)

    return run


FEW_WRITES = 8
"""Writes that are not worth two batches."""


def first_batch(waiting: int) -> int:
    """How many of the writes that wait after a pause go first: half of them.

    After a pause, all sessions are in step. From then on, one half makes its next calls while the other is written.
    """
    return waiting if waiting <= FEW_WRITES else (waiting + 1) // 2


def answer(caller: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Give a caller its result or error, unless it has stopped waiting."""
    if caller.done():
        return
    if error is None:
        caller.set_result(result)
    else:
        caller.set_exception(error)


async def in_turn(items: Iterable[T], work: Callable[[T], Awaitable[R]], most: int) -> list[R]:
    """Do work on many items, on `most` of them at the same time; the results in order."""
    waiting = [*items]
    results: dict[int, R] = {}
    rest = iter(enumerate(waiting))

    async def take() -> None:
        for number, item in rest:
            results[number] = await work(item)

    await asyncio.gather(*(take() for _ in range(min(most, len(waiting)))))
    return [results[number] for number in range(len(waiting))]
