"""Limits: concurrent requests and requests per minute for an endpoint, and pauses after trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import uniform
from time import monotonic, time
from typing import Protocol

import msgspec

from stateroom.errors import ModelUnavailable
from stateroom.pauses import Pauses

BURST_SECONDS = 1.0
"""The size of a burst: the requests and tokens of this many seconds may be sent at once."""

logger = logging.getLogger(__name__)


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the requests to a remote model."""

    attempts: int = 6
    """The maximum number of attempts per answer."""
    timeout: float = 300.0
    """The time limit per attempt, in seconds."""
    deadline: float = 900.0
    """The time limit per answer, in seconds: all attempts and requested pauses, but not the wait for a limit."""
    concurrency: int = 64
    """Concurrent requests per endpoint."""
    requests_per_minute: float | None = None
    """Requests per minute and endpoint, evenly spaced; None for no limit."""
    tokens_per_minute: float | None = None
    """Tokens per minute and endpoint, for requests and answers together; None for no limit."""
    first_pause: float = 0.5
    """The upper bound of the first pause after trouble, in seconds; it doubles with each further failure."""
    longest_pause: float = 30.0
    """The upper bound of any pause, in seconds, unless the server requests a longer one."""


def call_later(seconds: float, call: Callable[[], None]) -> asyncio.Handle:
    """Call a function after some seconds."""
    return asyncio.get_running_loop().call_later(seconds, call)


@dataclass(frozen=True)
class Timing:
    """The clock and the randomness of limits and retries; tests replace them."""

    later: Callable[[float, Callable[[], None]], asyncio.Handle] = call_later
    now: Callable[[], float] = monotonic
    today: Callable[[], float] = time
    """Wall-clock time, for dates in a server's headers."""
    between: Callable[[float, float], float] = uniform

    def pause(self, troubles: int, limits: ModelLimits) -> float:
        """A pause with exponential backoff and jitter, so processes that failed together do not retry together."""
        return self.between(0.0, Pauses(limits.first_pause, limits.longest_pause).bound(troubles))


class RequestReport(msgspec.Struct, frozen=True):
    """The result of a request."""

    reserved: int
    """The tokens passed to `acquire`."""
    spent: int | None
    """The tokens that the server reported; None if it did not."""
    ok: bool | None
    """False after temporary trouble; None if the request was cancelled without a result."""
    pause: float | None = None
    """The wait that the server requested, in seconds."""


class Limiter(Protocol):
    """Decides when requests may be sent to endpoints, which are identified by URL."""

    async def acquire(self, endpoint: str, tokens: int) -> None:
        """Wait until a request to this endpoint may be sent; `tokens` is an estimate of its usage.

        Call `release` once for each call that returned. Raises `ModelUnavailable` if the endpoint has failed too often
        in a row.
        """

    def release(self, endpoint: str, report: RequestReport) -> None:
        """Report the result of a request. Never blocks."""


class LocalLimiter:
    """Limits the requests of one event loop; each endpoint has the same limits and its own queue."""

    def __init__(self, limits: ModelLimits, timing: Timing | None = None) -> None:
        self._limits = limits
        self._timing = timing or Timing()
        self._gates: dict[str, _Gate] = {}

    async def acquire(self, endpoint: str, tokens: int) -> None:
        """Wait until a request may be sent, in the order of the calls."""
        if endpoint not in self._gates:
            self._gates[endpoint] = _Gate(endpoint, self._limits, self._timing)
        await self._gates[endpoint].enter(tokens)

    def release(self, endpoint: str, report: RequestReport) -> None:
        """Report the result of a request."""
        self._gates[endpoint].leave(report)


class _Gate:
    """The gate to one endpoint.

    After trouble it closes for a while, and then admits one request at first; each success doubles the number of
    concurrent requests, up to the limit.
    """

    def __init__(self, endpoint: str, limits: ModelLimits, timing: Timing) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._timing = timing
        self._queue = asyncio.Lock()  # fair, and drops cancelled waiters
        self._changed = asyncio.Event()
        self._requests = _Pace(limits.requests_per_minute)
        self._tokens = _Pace(limits.tokens_per_minute)
        self._running = 0
        self._allowed = limits.concurrency
        self._resumes = -inf
        """The end of the pause."""
        self._troubles = 0
        """Consecutive troubles."""
        self._given_up = 0
        """How often all waiting requests were refused."""

    async def enter(self, tokens: int) -> None:
        given_up = self._given_up
        async with self._queue:
            while (seconds := self._seconds(tokens)) > 0:
                if given_up != self._given_up:
                    raise ModelUnavailable(f"{self._endpoint} failed {self._troubles} times in a row")
                await self._change(seconds)
            self._running += 1
            now = self._timing.now()
            self._requests.take(1, now)
            self._tokens.take(tokens, now)

    def leave(self, report: RequestReport) -> None:
        self._running -= 1
        if report.spent is not None:
            self._tokens.correct(report.spent - report.reserved)
        if report.ok is False:
            self._rest(report.pause or 0.0)
        elif report.ok and self._timing.now() >= self._resumes:  # otherwise it was sent before the trouble
            self._troubles = 0
            self._allowed = min(self._allowed * 2, self._limits.concurrency)
        self._changed.set()

    def _rest(self, asked: float) -> None:
        now = self._timing.now()
        if now < self._resumes:  # requests that failed together count as one trouble
            self._resumes = max(self._resumes, now + asked)
            return
        self._troubles += 1
        self._allowed = 1
        pause = asked + self._timing.pause(self._troubles, self._limits)
        self._resumes = now + pause
        logger.info("pausing requests to %s for %.1f s", self._endpoint, pause)
        if self._troubles >= self._limits.attempts:
            self._given_up += 1

    def _seconds(self, tokens: int) -> float:
        """The seconds until a request may pass; infinite if another one must finish first."""
        if self._running >= self._allowed:
            return inf
        return max(self._resumes, self._requests.ready(1), self._tokens.ready(tokens)) - self._timing.now()

    async def _change(self, seconds: float) -> None:
        """Wait for some seconds, or until a request finishes."""
        self._changed.clear()
        timer = None if seconds == inf else self._timing.later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()


class _Pace:
    """An even rate. An amount larger than a burst passes when nothing is owed, and is then owed."""

    def __init__(self, per_minute: float | None) -> None:
        self._each = 0.0 if per_minute is None else 60.0 / per_minute
        self._paid = -inf
        """The time at which nothing is owed."""

    def ready(self, amount: int) -> float:
        """The time from which this amount may be taken."""
        return self._paid - max(0.0, max(BURST_SECONDS, self._each) - amount * self._each)

    def take(self, amount: int, now: float) -> None:
        self._paid = max(self._paid, now) + amount * self._each

    def correct(self, amount: int) -> None:
        """Take more, or give back with a negative amount."""
        self._paid += amount * self._each
