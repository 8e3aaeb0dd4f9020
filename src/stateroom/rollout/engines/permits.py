"""Permits for requests to models: workers ask the driver, which has the only limiter of a run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import msgspec

from stateroom.errors import ModelUnavailable
from stateroom.model import Limiter, RequestReport


class RequestPermit(msgspec.Struct, frozen=True):
    """From a worker: asks to send a request to a model's server."""

    number: int
    """Identifies the request within the worker."""
    endpoint: str
    tokens: int


class Withdrawn(msgspec.Struct, frozen=True):
    """From a worker: a requested permit is no longer needed."""

    number: int


class Released(msgspec.Struct, frozen=True):
    """From a worker: the result of a permitted request."""

    number: int
    report: RequestReport


class Permitted(msgspec.Struct, frozen=True):
    """To a worker: permits or refuses a request."""

    number: int
    error: str | None
    """Why the request is refused; None if it is permitted."""


AboutRequest = RequestPermit | Withdrawn | Released


class DriversLimiter:
    """The limiter of a worker, which asks the driver."""

    def __init__(self, notify: Callable[[AboutRequest], None]) -> None:
        self._notify = notify
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._permitted: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        """The numbers of requests under way, by endpoint and tokens."""

    async def acquire(self, endpoint: str, tokens: int) -> None:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._notify(RequestPermit(number, endpoint, tokens))
        try:
            await self._waiting[number]
        except asyncio.CancelledError:
            self._notify(Withdrawn(number))  # the permit may be on its way
            raise
        finally:
            del self._waiting[number]
        self._permitted[endpoint, tokens].append(number)

    def release(self, endpoint: str, report: RequestReport) -> None:
        self._notify(Released(self._permitted[endpoint, report.reserved].pop(), report))

    def hear(self, permitted: Permitted) -> None:
        """Permit or refuse a waiting request."""
        waiting = self._waiting.get(permitted.number)
        if waiting is None or waiting.done():
            return
        if permitted.error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(ModelUnavailable(permitted.error))


class Permits:
    """The requests of one worker at the driver's limiter."""

    def __init__(self, limiter: Limiter, send: Callable[[Sequence[Permitted]], Awaitable[None]]) -> None:
        self._limiter = limiter
        self._send = send
        self._asked: dict[int, RequestPermit] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}

    def hear(self, message: AboutRequest) -> None:
        number = message.number
        match message:
            case RequestPermit():
                self._asked[number] = message
                self._waiting[number] = asyncio.create_task(self._permit(message))
            case Withdrawn():
                self._withdraw(number)
            case Released():
                self._limiter.release(self._asked.pop(number).endpoint, message.report)

    async def _permit(self, asked: RequestPermit) -> None:
        error: str | None = None
        try:
            await self._limiter.acquire(asked.endpoint, asked.tokens)
        except ModelUnavailable as unavailable:
            error = str(unavailable)
            del self._asked[asked.number]
        del self._waiting[asked.number]
        await self._send([Permitted(asked.number, error)])

    def _withdraw(self, number: int) -> None:
        if number in self._waiting:
            self._waiting.pop(number).cancel()
            del self._asked[number]
        elif number in self._asked:
            asked = self._asked.pop(number)
            self._limiter.release(asked.endpoint, RequestReport(asked.tokens, None, ok=None))

    def close(self) -> None:
        """Release all permits of a lost worker."""
        for number in [*self._asked]:
            self._withdraw(number)
