"""Endpoints: servers with OpenAI's Responses or Chat Completions API, called through the `openai` SDK.

An `EndpointPool` is one model on one or more endpoints. An episode stays with one endpoint while that is healthy.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from math import inf, isfinite
from time import time
from typing import Any, Literal, NamedTuple

from stateroom.errors import MissingPackage, ModelFailed, ModelUnavailable
from stateroom.model.address import NO_KEY, ModelAddress
from stateroom.model.limiter import Limiter, LocalLimiter, ModelLimits, RequestReport, Timing
from stateroom.model.model import Request
from stateroom.model.settings import usage_of
from stateroom.session import parsed

try:
    import openai
except ModuleNotFoundError as error:
    raise MissingPackage("a remote model", error.name, "'stateroom[openai]'") from error

API = Literal["responses", "chat"]

CONNECT_SECONDS = 10.0
"""The time limit to connect, in seconds."""

PASSING_STATUSES = frozenset({408, 409, 429})
"""HTTP statuses below 500 after which a retry may succeed."""

OUTPUT_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
"""Parameters that limit the tokens of an answer."""

CHARACTERS_PER_TOKEN = 4
"""The estimated number of characters per token."""

MAX_FAILURES = 3
"""Failures in a row after which an endpoint counts as unhealthy."""

logger = logging.getLogger(__name__)


class Question(NamedTuple):
    """A request to an endpoint."""

    api: API
    body: Mapping[str, Any]
    key: str
    """Identical for repeated requests of the same step, so a server can charge the answer once."""
    tokens: int
    """The estimated tokens of the request and the answer."""

    @classmethod
    def of(cls, api: API, model: str, body: Mapping[str, Any], request: Request) -> Question:
        """Create a question for a request. Raises `TypeError` or `ValueError` if the body is not JSON."""
        text = json.dumps([model, request.seed, request.step, body], sort_keys=True)
        answer = next((body[name] for name in OUTPUT_LIMITS if isinstance(body.get(name), int)), 0)
        key = blake2b(text.encode(), digest_size=16).hexdigest()
        return cls(api, body, key, len(text) // CHARACTERS_PER_TOKEN + answer)


class Trouble(NamedTuple):
    """Why an attempt failed."""

    message: str
    passing: bool
    """Whether a retry may succeed."""
    after: float | None = None
    """The wait that the server requests, in seconds."""
    health: Literal["well", "failing", "gone"] = "well"
    """The health of the server: a busy one is well, and one that accepts no connection is gone."""


class Endpoint:
    """A connection to one server of models. Close it after use."""

    def __init__(self, name: str, address: ModelAddress, today: Callable[[], float] = time) -> None:
        self.name = name
        """The model and the server as named in messages."""
        self.address = address
        self._today = today
        self._client = openai.AsyncOpenAI(
            api_key=address.key,
            base_url=address.url,
            max_retries=0,  # see ModelLimits
            timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
        )
        # Resolved here, because the SDK imports much for them, which must not count as part of an attempt.
        self._respond = self._client.responses.with_raw_response.create
        self._complete = self._client.chat.completions.with_raw_response.create

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def attempt(self, question: Question, seconds: float) -> dict[str, Any] | Trouble:
        """Send a request once; returns the server's reply as JSON data, or the trouble.

        Errors of the SDK are not passed on, because they may contain the key.
        """
        try:
            async with asyncio.timeout(seconds):
                text = self.address.hidden_in_answer(await self._send(question))
        except TimeoutError:
            return Trouble(f"did not answer in {seconds:.3g} s", passing=True, health="failing")
        except openai.APIStatusError as error:
            return self._refusal(error)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            health: Literal["failing", "gone"] = "gone" if type(cause).__name__.startswith("Connect") else "failing"
            return Trouble(self.address.hidden(f"cannot be reached: {cause}"), passing=True, health=health)
        except (openai.OpenAIError, TypeError, ValueError) as error:
            return Trouble(self.address.hidden(f"cannot be called: {error}"), passing=False)
        return self._decoded(text)

    async def _send(self, question: Question) -> str:
        model, body, headers = self.address.model, question.body, {"Idempotency-Key": question.key}
        if question.api == "responses":
            return (await self._respond(model=model, extra_body=body, extra_headers=headers)).text
        reply = await self._complete(model=model, messages=(), extra_body=body, extra_headers=headers)
        return reply.text  # the body with the messages

    def _refusal(self, error: openai.APIStatusError) -> Trouble:
        status, headers = error.status_code, error.response.headers
        message = self.address.hidden(_message(error.response.text))[:1000]
        if status in (401, 403):
            variable, sent = self.address.variable, self.address.key != NO_KEY
            message += f" (is the key in {variable} right?)" if sent else f" (no key was sent: set {variable})"
        passing = (status in PASSING_STATUSES or status >= 500) and headers.get("x-should-retry") != "false"
        after = retry_after(headers, self._today())
        health: Literal["well", "failing"] = "failing" if passing and status >= 500 else "well"
        return Trouble(f"answered {status}: {message}", passing, after, health)

    def _decoded(self, text: str) -> dict[str, Any]:
        reply = parsed(text)
        if not isinstance(reply, dict):
            raise ModelFailed(f"{self.name} did not answer with a JSON object: {text!r:.200}")
        if "\\ud" in text or "\\uD" in text:
            # A model that is cut off may leave half of a surrogate pair, which stores do not accept.
            return dict(json.loads(json.dumps(reply, ensure_ascii=False).encode(errors="replace")))
        return reply


def retry_after(headers: Mapping[str, str], today: float) -> float | None:
    """The seconds to wait from the headers of a reply, if any."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - today)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _message(text: str) -> str:
    """The error message in a server's reply, in any of the common formats."""
    message = parsed(text)
    for name in ("error", "message", "detail"):
        if isinstance(message, dict) and message.get(name):
            message = message[name]
    if isinstance(message, str):
        return message.strip() or "and nothing else"
    return json.dumps(message, ensure_ascii=False)


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
        """Send a request until it is answered, fails permanently, or reaches a limit.

        Returns the server's reply as JSON data. Raises `ModelFailed` or `ModelUnavailable`.
        """
        try:
            question = Question.of(api, self._members[0].endpoint.address.model, body, request)
        except (TypeError, ValueError) as error:
            raise ModelFailed(f"{self.name} cannot be called: {error}") from None
        trip = _Trip(self._order(request.seed))
        began, attempts, spent = self._timing.now(), 0, 0.0
        while True:
            attempts += 1
            seconds = min(self._limits.timeout, self._limits.deadline - spent)
            member, reply, took = await self._sent(question, trip, seconds)
            if not isinstance(reply, Trouble):
                return reply
            trip.trouble = f"{member.endpoint.name} {reply.message}"
            if not reply.passing:
                raise ModelFailed(trip.trouble)
            spent += took
            if reply.health == "well" or len(self._members) == 1:
                spent += reply.after or 0.0
            else:
                trip.left.add(member)
            if attempts >= self._limits.attempts or spent >= self._limits.deadline:
                passed = self._timing.now() - began
                raise ModelUnavailable(f"{trip.trouble} (attempts: {attempts}, in {passed:.1f} s)")
            logger.info("%s; attempt %d follows", trip.trouble, attempts + 1)

    def _order(self, seed: int) -> list[_Member]:
        """The endpoints in order for an episode, by rendezvous hashing, so a lost endpoint moves no other episodes."""
        return sorted(self._members, key=lambda member: blake2b(f"{seed}/{member.url}".encode()).digest())

    async def _sent(
        self, question: Question, trip: _Trip, seconds: float
    ) -> tuple[_Member, dict[str, Any] | Trouble, float]:
        """Send a request to the first endpoint that accepts it; returns the endpoint, the result and the seconds."""
        while True:
            member = trip.next(self._timing.now())
            with member.visit():
                if await self._permitted(member, question.tokens, trip):
                    began = self._timing.now()
                    reply = await self._attempt(member, question, seconds)
                    return member, reply, self._timing.now() - began

    async def _permitted(self, member: _Member, tokens: int, trip: _Trip) -> bool:
        """Wait until a request may be sent to an endpoint; returns False if it should go to another one."""
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
        """Send a permitted request, and release the permit with a report."""
        report = RequestReport(question.tokens, None, ok=None)
        try:
            reply = await member.endpoint.attempt(question, seconds)
            report = _report(question, reply)
        finally:
            self._limiter.release(member.url, report)
        member.note(reply)
        if member.ill and self._any_well():
            member.send_away()
        return reply

    def _any_well(self) -> bool:
        return not all(member.ill for member in self._members)


def _report(question: Question, reply: dict[str, Any] | Trouble) -> RequestReport:
    if isinstance(reply, Trouble):
        return RequestReport(question.tokens, None, ok=not reply.passing, pause=reply.after)
    usage = usage_of(reply.get("usage"))
    return RequestReport(question.tokens, None if usage is None else usage.input_tokens + usage.output_tokens, ok=True)


class _Trip:
    """The route of a request: the endpoints in order, and those left in this round."""

    def __init__(self, order: Sequence[_Member]) -> None:
        self._order = order
        self.left: set[_Member] = set()
        self.trouble = ""
        """The latest trouble."""

    def next(self, now: float) -> _Member:
        """The next endpoint; after the last, a new round begins with one that is or may soon be healthy."""
        for member in self._order:
            if member not in self.left and member.takes(now):
                return member
        self.left.clear()
        return min(self._order, key=lambda member: member.until)


class _Member:
    """An endpoint and its health. While unhealthy, it gets one request at a time, with a pause after each failure."""

    def __init__(self, endpoint: Endpoint, limits: ModelLimits, timing: Timing) -> None:
        self.endpoint = endpoint
        self.url = endpoint.address.url
        self.ill = 0
        """Consecutive times it was found unhealthy."""
        self.until = -inf
        """The end of its pause."""
        self._limits = limits
        self._timing = timing
        self._failures = 0
        self._probes = 0
        self._waiting: set[asyncio.Timeout] = set()

    def takes(self, now: float) -> bool:
        """Whether it accepts a request."""
        return not self.ill or (now >= self.until and not self._probes)

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Block other requests to an unhealthy endpoint while one request probes it."""
        probes = self.ill > 0
        self._probes += probes
        try:
            yield
        finally:
            self._probes -= probes

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Wait for a permit; raises `TimeoutError` on `send_away`."""
        async with asyncio.timeout(None) as leaving:
            self._waiting.add(leaving)
            try:
                yield
            finally:
                self._waiting.discard(leaving)

    def send_away(self) -> None:
        """Redirect the waiting requests to other endpoints."""
        while self._waiting:
            self._waiting.pop().reschedule(-inf)

    def note(self, reply: dict[str, Any] | Trouble) -> None:
        """Update the health after an attempt."""
        health = reply.health if isinstance(reply, Trouble) else "well"
        if health == "well":
            self.ill, self.until, self._failures = 0, -inf, 0
            return
        self._failures += 1
        if health == "gone" or self._failures >= MAX_FAILURES:
            self.fall_ill()

    def fall_ill(self) -> None:
        """Mark it as unhealthy, with a growing pause."""
        now = self._timing.now()
        if now >= self.until:  # requests that failed together count as one failure
            self.ill += 1
            self.until = now + self._timing.pause(self.ill, self._limits)
