"""Pools: one model on several servers. An episode stays with one of them, as long as that one is well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import blake2b
from itertools import count
from math import inf
from typing import Any

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model.address import ModelLimits
from stateroom.model.endpoint import API, Endpoint, Question, Trouble
from stateroom.model.limiter import Limiter, LocalLimiter, RequestReport, Timing
from stateroom.model.model import Request
from stateroom.model.settings import usage_of

ILL = 3
"""Failures in a row after which an endpoint is ill."""

logger = logging.getLogger(__name__)


class EndpointPool:
    """The endpoints of one model, with their limits. Close it after use."""

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        limits: ModelLimits,
        limiter: Limiter | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.name = name
        self._limits = limits
        self._timing = timing or Timing()
        self._limiter = limiter or LocalLimiter(limits, self._timing)
        self._members = [_Member(endpoint, limits, self._timing) for endpoint in endpoints]

    async def close(self) -> None:
        """Close the connections."""
        for member in self._members:
            await member.endpoint.close()

    async def ask(self, api: API, body: Mapping[str, Any], request: Request) -> dict[str, Any]:
        """Send a request until it is answered, its trouble will not pass, or a limit is reached.

        Returns the server's reply as JSON data. Raises `ModelFailed` or `ModelUnavailable`.
        """
        try:
            question = Question.of(api, self._members[0].endpoint.address.model, body, request)
        except (TypeError, ValueError) as error:
            raise ModelFailed(f"{self.name} cannot be asked: {error}") from None
        trip = _Trip(self._order(request.seed))
        began, spent = self._timing.now(), 0.0
        for attempts in count(1):
            seconds = min(self._limits.timeout, self._limits.deadline - spent)
            member, found, took = await self._sent(question, trip, seconds)
            if not isinstance(found, Trouble):
                return found
            if not found.passing:
                raise ModelFailed(f"{member.endpoint.name} {found.message}")
            trip.trouble = f"{member.endpoint.name} {found.message}"
            spent += took
            if found.health == "well" or len(self._members) == 1:
                spent += found.after or 0.0
            else:
                trip.left.add(member)
            if attempts >= self._limits.attempts or spent >= self._limits.deadline:
                passed = self._timing.now() - began
                raise ModelUnavailable(f"{trip.trouble} (attempts: {attempts}, in {passed:.1f} s)")
            logger.info("%s; attempt %d follows", trip.trouble, attempts + 1)
        raise AssertionError

    def _order(self, seed: int) -> list[_Member]:
        """The endpoints in the order of an episode: by rendezvous hashing, so that one that is gone moves no others."""
        return sorted(self._members, key=lambda member: blake2b(f"{seed}/{member.url}".encode()).digest())

    async def _sent(
        self, question: Question, trip: _Trip, seconds: float
    ) -> tuple[_Member, dict[str, Any] | Trouble, float]:
        """Send a request to the first endpoint that lets it pass; returns that, what came of it, and the seconds."""
        while True:
            member = trip.next(self._timing.now())
            with member.visit():
                if await self._permitted(member, question.tokens, trip):
                    began = self._timing.now()
                    found = await self._attempt(member, question, seconds)
                    return member, found, self._timing.now() - began

    async def _permitted(self, member: _Member, tokens: int, trip: _Trip) -> bool:
        """Wait until a request may be sent to an endpoint; False if it is better sent to another one."""
        try:
            async with member.waiting():
                await self._limiter.acquire(member.url, tokens)
        except TimeoutError:
            return False
        except ModelUnavailable as error:
            member.fall_ill()
            if not self._any_well():
                raise ModelUnavailable(trip.trouble or str(error)) from None
            return False
        return True

    async def _attempt(self, member: _Member, question: Question, seconds: float) -> dict[str, Any] | Trouble:
        """Send a request, with the permit for it, which is given back with a report."""
        report = RequestReport(question.tokens, None, ok=None)
        try:
            found = await member.endpoint.attempt(question, seconds)
            report = _report(question, found)
        finally:
            self._limiter.release(member.url, report)
        member.note(found)
        if member.ill and self._any_well():
            member.send_away()
        return found

    def _any_well(self) -> bool:
        return not all(member.ill for member in self._members)


def _report(question: Question, found: dict[str, Any] | Trouble) -> RequestReport:
    if isinstance(found, Trouble):
        return RequestReport(question.tokens, None, ok=not found.passing, pause=found.after)
    usage = usage_of(found.get("usage"))
    return RequestReport(question.tokens, None if usage is None else usage.input_tokens + usage.output_tokens, ok=True)


class _Trip:
    """Where a request goes: the endpoints in its order, and those that it has left in this round."""

    def __init__(self, order: Sequence[_Member]) -> None:
        self._order = order
        self.left: set[_Member] = set()
        self.trouble = ""
        """What happened last."""

    def next(self, now: float) -> _Member:
        """The endpoint to send to: if there is none, a new round begins with one that is well, or soon may be."""
        for member in self._order:
            if member not in self.left and member.takes(now):
                return member
        self.left.clear()
        return min(self._order, key=lambda member: member.until)


class _Member:
    """An endpoint and its health. While it is ill it gets one request at a time, and after each failure a pause."""

    def __init__(self, endpoint: Endpoint, limits: ModelLimits, timing: Timing) -> None:
        self.endpoint = endpoint
        self.url = endpoint.address.url
        self.ill = 0
        """How often in a row it was found ill."""
        self.until = -inf
        """When its pause ends."""
        self._limits = limits
        self._timing = timing
        self._failures = 0
        self._probes = 0
        self._waiting: set[asyncio.Timeout] = set()

    def takes(self, now: float) -> bool:
        """Whether it may be asked."""
        return not self.ill or (now >= self.until and not self._probes)

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Keep others away from an endpoint that is ill while one request finds out how it is."""
        probes = self.ill > 0
        self._probes += probes
        try:
            yield
        finally:
            self._probes -= probes

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Wait here for a permit; raises `TimeoutError` on `send_away`."""
        async with asyncio.timeout(None) as leaving:
            self._waiting.add(leaving)
            try:
                yield
            finally:
                self._waiting.discard(leaving)

    def send_away(self) -> None:
        """Send the waiting requests to other endpoints."""
        while self._waiting:
            self._waiting.pop().reschedule(-inf)

    def note(self, found: dict[str, Any] | Trouble) -> None:
        """Learn from an attempt."""
        health = found.health if isinstance(found, Trouble) else "well"
        if health == "well":
            self.ill, self.until, self._failures = 0, -inf, 0
            return
        self._failures += 1
        if health == "gone" or self._failures >= ILL:
            self.fall_ill()

    def fall_ill(self) -> None:
        """Take it for ill, with a pause that grows."""
        now = self._timing.now()
        if now >= self.until:  # else requests that failed together are one failure
            self.ill += 1
            self.until = now + self._timing.pause(self.ill, self._limits)
