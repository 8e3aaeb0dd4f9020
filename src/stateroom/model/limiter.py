"""Limits: how many requests an endpoint gets at once and in a minute, and its rest after trouble."""

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
"""Seconds' worth of requests and tokens that may be sent at once."""

logger = logging.getLogger(__name__)


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the requests to a remote model."""

    attempts: int = 6
    """Attempts per answer, before the model counts as unavailable."""
    timeout: float = 300.0
    """Seconds per attempt."""
    deadline: float = 900.0
    """Seconds per answer: all attempts, and the pauses that the server asks for. To wait for a limit does not count."""
    concurrency: int = 64
    """Requests to an endpoint at the same time."""
    requests_per_minute: float | None = None
    """Requests to an endpoint in a minute, evenly spread; None for any number."""
    tokens_per_minute: float | None = None
    """Tokens of an endpoint in a minute, those of the requests and of the answers; None for any number."""
    first_pause: float = 0.5
    """Upper bound of an endpoint's first pause after trouble, in seconds; it doubles each time that it fails again."""
    longest_pause: float = 30.0
    """Upper bound of a pause, in seconds, unless the server asks for a longer one."""


def call_later(seconds: float, call: Callable[[], None]) -> asyncio.Handle:
    """Call a function after some seconds."""
    return asyncio.get_running_loop().call_later(seconds, call)


@dataclass(frozen=True)
class Timing:
    """The clock and the randomness of limits and retries; tests replace them."""

    later: Callable[[float, Callable[[], None]], asyncio.Handle] = call_later
    now: Callable[[], float] = monotonic
    today: Callable[[], float] = time
    """Wall-clock time, as in a server's headers."""
    between: Callable[[float, float], float] = uniform

    def pause(self, troubles: int, limits: ModelLimits) -> float:
        """A random pause below a bound that doubles, so that processes that failed together do not retry together."""
        return self.between(0.0, Pauses(limits.first_pause, limits.longest_pause).bound(troubles))


class RequestReport(msgspec.Struct, frozen=True):
    """How a request went."""

    reserved: int
    """The tokens that were given to `acquire`."""
    spent: int | None
    """The tokens that the server reported; None if it did not."""
    ok: bool | None
    """False after trouble that may pass; None if the request was given up before anything was known."""
    pause: float | None = None
    """Seconds that the server asked to wait."""


class Limiter(Protocol):
    """Says when requests may be sent to endpoints, which are named by their URLs."""

    async def acquire(self, endpoint: str, tokens: int) -> None:
        """Wait until a request to this endpoint may be sent; `tokens` is an estimate of what it will use.

        Call `release` once for each call that returned. Raises `ModelUnavailable` when the endpoint has failed so
        often in a row that it is no use to wait.
        """

    def release(self, endpoint: str, report: RequestReport) -> None:
        """Say how the request went. Never blocks."""


class LocalLimiter:
    """Limits the requests of one event loop; each endpoint has the same limits, and a queue of its own."""

    def __init__(self, limits: ModelLimits, timing: Timing | None = None) -> None:
        self._limits = limits
        self._timing = timing or Timing()
        self._gates: dict[str, _Gate] = {}

    async def acquire(self, endpoint: str, tokens: int) -> None:
        """Wait until a request may be sent: in the order of the calls, and at once if nothing limits it."""
        if endpoint not in self._gates:
            self._gates[endpoint] = _Gate(endpoint, self._limits, self._timing)
        await self._gates[endpoint].enter(tokens)

    def release(self, endpoint: str, report: RequestReport) -> None:
        """Say how the request went."""
        self._gates[endpoint].leave(report)


class _Gate:
    """The way to one endpoint.

    After trouble nobody passes for a while, and then one request at first; each success doubles the number of requests
    at the same time, up to the limit.
    """

    def __init__(self, endpoint: str, limits: ModelLimits, timing: Timing) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._timing = timing
        self._queue = asyncio.Lock()  # it is fair, and forgets who is cancelled
        self._changed = asyncio.Event()
        self._requests = _Pace(limits.requests_per_minute)
        self._tokens = _Pace(limits.tokens_per_minute)
        self._running = 0
        self._allowed = limits.concurrency
        self._resumes = -inf
        """When the endpoint has rested."""
        self._troubles = 0
        """Troubles in a row."""
        self._given_up = 0
        """How often all that waited were sent away."""

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
        elif report.ok and self._timing.now() >= self._resumes:  # else it was sent before the trouble
            self._troubles = 0
            self._allowed = min(self._allowed * 2, self._limits.concurrency)
        self._changed.set()

    def _rest(self, asked: float) -> None:
        now = self._timing.now()
        if now < self._resumes:  # requests that failed together are one trouble
            self._resumes = max(self._resumes, now + asked)
            return
        self._troubles += 1
        self._allowed = 1
        pause = asked + self._timing.pause(self._troubles, self._limits)
        self._resumes = now + pause
        logger.info("%s gets no request for %.1f s", self._endpoint, pause)
        if self._troubles >= self._limits.attempts:
            self._given_up += 1

    def _seconds(self, tokens: int) -> float:
        """Seconds until a request may pass; infinite if another one must leave first."""
        if self._running >= self._allowed:
            return inf
        return max(self._resumes, self._requests.ready(1), self._tokens.ready(tokens)) - self._timing.now()

    async def _change(self, seconds: float) -> None:
        """Wait for some seconds, or until a request leaves."""
        self._changed.clear()
        timer = None if seconds == inf else self._timing.later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()


class _Pace:
    """An even rate. What is larger than a burst is let through when nothing is owed, and is owed then."""

    def __init__(self, per_minute: float | None) -> None:
        self._each = 0.0 if per_minute is None else 60.0 / per_minute
        self._paid = -inf
        """When all that was taken is paid for."""

    def ready(self, amount: int) -> float:
        """The time from which this amount may be taken."""
        return self._paid - max(0.0, max(BURST_SECONDS, self._each) - amount * self._each)

    def take(self, amount: int, now: float) -> None:
        self._paid = max(self._paid, now) + amount * self._each

    def correct(self, amount: int) -> None:
        """Take some more, or less than nothing."""
        self._paid += amount * self._each
