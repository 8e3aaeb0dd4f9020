"""Remote models: any server with OpenAI's Responses or Chat Completions API, through the `openai` SDK."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from math import isfinite
from random import uniform
from time import monotonic, time
from typing import Any, Literal, NamedTuple

from stateroom.errors import ModelFailed, ModelUnavailable, NotFound
from stateroom.model.address import NO_KEY, ModelAddress, ModelLimits
from stateroom.model.chat import chat_tools, completion_items, messages_of
from stateroom.model.model import Answer, Model, Request
from stateroom.model.settings import chat_settings, usage_of

try:
    import openai
except ModuleNotFoundError as error:
    raise NotFound(f"remote models need {error.name}: pip install 'stateroom[openai]'") from error

API = Literal["responses", "chat"]

CONNECT = 10.0
"""Seconds to connect."""

PASSING = frozenset({408, 409, 429})
"""HTTP statuses, besides those from 500 on, after which another attempt may succeed."""

NOT_SETTINGS = frozenset({"model", "input", "messages", "tools", "stream", "stream_options", "background", "n"})
"""Parameters that settings cannot set."""

ENCRYPTED = "reasoning.encrypted_content"
"""What to include, so that the next request can send the model its reasoning back."""

PASSING_CODES = frozenset({"server_error", "rate_limit_exceeded"})
"""Error codes after which the same request may succeed later."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """The clock and the randomness of retries; tests replace them."""

    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    now: Callable[[], float] = monotonic
    today: Callable[[], float] = time
    """Wall-clock time, as in a server's headers."""
    between: Callable[[float, float], float] = uniform


class Trouble(NamedTuple):
    """Why an attempt failed."""

    message: str
    passing: bool
    """Whether another attempt may succeed."""
    after: float | None = None
    """Seconds that the server asks to wait."""


class Endpoint:
    """A connection to a server of models, with its limits. Close it after use."""

    def __init__(self, name: str, address: ModelAddress, limits: ModelLimits, timing: Timing | None = None) -> None:
        self.name = name
        self.address = address
        self._limits = limits
        self._timing = timing or Timing()
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._client = openai.AsyncOpenAI(
            api_key=address.key,
            base_url=address.url,
            max_retries=0,  # ModelLimits has them
            timeout=openai.Timeout(None, connect=CONNECT),
        )
        # Resolved here: the SDK imports much for them, which must not count as part of an attempt.
        self._respond = self._client.responses.with_raw_response.create
        self._complete = self._client.chat.completions.with_raw_response.create

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(self, api: API, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the server's reply as JSON data."""
        send = self._ask_responses if api == "responses" else self._ask_chat

        async def attempt(seconds: float) -> str | Trouble:
            return await self._attempt(send, body, seconds)

        async with self._slots:
            text = await retry(attempt, self._limits, self._timing, self.name)
        return self._decoded(text)

    async def _ask_responses(self, body: Mapping[str, Any]) -> str:
        return (await self._respond(model=self.address.model, extra_body=body)).text

    async def _ask_chat(self, body: Mapping[str, Any]) -> str:
        return (await self._complete(model=self.address.model, messages=(), extra_body=body)).text  # body has messages

    async def _attempt(
        self, send: Callable[[Mapping[str, Any]], Awaitable[str]], body: Mapping[str, Any], seconds: float
    ) -> str | Trouble:
        """The text of a reply, or the trouble. The SDK's errors go no further: they may contain the key."""
        try:
            async with asyncio.timeout(seconds):
                return self.address.hidden_in_answer(await send(body))
        except TimeoutError:
            return Trouble(f"did not answer in {seconds:.3g} s", passing=True)
        except openai.APIStatusError as error:
            return self._refusal(error)
        except openai.APIConnectionError as error:
            return Trouble(self.address.hidden(f"cannot be reached: {error.__cause__ or error}"), passing=True)
        except (openai.OpenAIError, TypeError, ValueError) as error:
            return Trouble(self.address.hidden(f"cannot be asked: {error}"), passing=False)

    def _refusal(self, error: openai.APIStatusError) -> Trouble:
        status, headers = error.status_code, error.response.headers
        said = self.address.hidden(_message(error.response.text))[:1000]
        if status in (401, 403):
            variable, sent = self.address.variable, self.address.key != NO_KEY
            said += f" (is the key in {variable} right?)" if sent else f" (no key was sent: set {variable})"
        passing = (status in PASSING or status >= 500) and headers.get("x-should-retry") != "false"
        return Trouble(f"answered {status}: {said}", passing, retry_after(headers, self._timing.today()))

    def _decoded(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
            # A model that is cut off may leave half of a surrogate pair, which no store takes.
            if "\\ud" in text or "\\uD" in text:
                found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ModelFailed(f"{self.name} answered with something that is not a JSON object: {text!r:.200}")
        return found


class ResponsesModel(Model):
    """A model with the Responses API; the server stores nothing.

    That API has no seed. With `tells_seed` the request has the seed in its `metadata`, for servers that look there.
    """

    def __init__(self, endpoint: Endpoint, *, tells_seed: bool) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._tells_seed = tells_seed
        self._seals = True

    async def answer(self, request: Request) -> Answer:
        body = self._body(request)
        try:
            reply = await self._endpoint.ask("responses", body)
        except ModelFailed as error:
            if "include" in request.settings or "encrypted" not in str(error).lower():
                raise
            self._seals = False  # it does not reason, and refuses this parameter
            reply = await self._endpoint.ask("responses", self._body(request))
        return self._read(reply)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {"store": False} | ({"include": [ENCRYPTED]} if self._seals else {})
        body |= settings_of(request.settings)
        if self._tells_seed:
            body["metadata"] = {"seed": str(request.seed), **body.get("metadata", {})}
        if request.tools:
            body["tools"] = [*request.tools]
        return body | {"input": [*request.items]}

    def _read(self, reply: dict[str, Any]) -> Answer:
        status, error, why = reply.get("status"), _fields(reply, "error"), _fields(reply, "incomplete_details")
        if status not in (None, "completed", "incomplete") or why.get("reason") == "content_filter":
            kind = ModelUnavailable if error.get("code") in PASSING_CODES else ModelFailed
            raise kind(f"{self.name} gave no answer: the response is {status}, {error or why!r:.500}")
        output = reply.get("output")
        if not isinstance(output, list):
            raise ModelFailed(f"{self.name} answered with a response that has no output: {reply!r:.300}")
        return Answer(output, usage_of(reply.get("usage")), truncated=status == "incomplete")


def _fields(reply: dict[str, Any], name: str) -> dict[str, Any]:
    found = reply.get(name)
    return found if isinstance(found, dict) else {}


class ChatModel(Model):
    """A model with the Chat Completions API."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint

    async def answer(self, request: Request) -> Answer:
        reply = await self._endpoint.ask("chat", _chat_body(request))
        try:
            choice, message = _choice(reply)
            items = completion_items(message)
        except ModelFailed as error:
            raise ModelFailed(f"{self.name}: {error}") from None
        return Answer(items, usage_of(reply.get("usage")), truncated=choice.get("finish_reason") == "length")


def _chat_body(request: Request) -> dict[str, Any]:
    settings = settings_of(request.settings)
    instructions = settings.pop("instructions", None)
    messages = messages_of(request.items)
    if instructions:
        messages = [{"role": "system", "content": instructions}, *messages]
    body = {"seed": request.seed, **chat_settings(settings), "messages": messages}
    return body | ({"tools": chat_tools(request.tools)} if request.tools else {})


def _choice(reply: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice of a completion, and its message."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ModelFailed(f"a completion must have a choice with a message: {reply!r:.300}")
    if choice.get("finish_reason") == "content_filter":
        raise ModelFailed("a content filter withheld the answer")
    return choice, choice["message"] | _token_ids(reply, choice)


def _token_ids(reply: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """Token ids for training, where vLLM reports them next to the message."""
    reported = {"prompt_token_ids": reply.get("prompt_token_ids"), "generation_token_ids": choice.get("token_ids")}
    return {name: value for name, value in reported.items() if value is not None}


async def retry(
    attempt: Callable[[float], Awaitable[str | Trouble]], limits: ModelLimits, timing: Timing, name: str
) -> str:
    """Repeat an attempt until it succeeds, its trouble will not pass, or a limit is reached.

    `attempt` is given its timeout in seconds. Raises `ModelFailed` or `ModelUnavailable`.
    """
    began = timing.now()
    end = began + limits.deadline
    for attempts in count(1):
        found = await attempt(min(limits.timeout, end - timing.now()))
        if isinstance(found, str):
            return found
        if not found.passing:
            raise ModelFailed(f"{name} {found.message}")
        pause = _pause(attempts, found.after, limits, timing)
        if attempts >= limits.attempts or timing.now() + pause >= end:
            passed = timing.now() - began
            raise ModelUnavailable(f"{name} {found.message} (attempts: {attempts}, in {passed:.1f} s)")
        logger.info("%s %s; next attempt in %.1f s", name, found.message, pause)
        await timing.sleep(pause)
    raise AssertionError


def _pause(attempts: int, after: float | None, limits: ModelLimits, timing: Timing) -> float:
    """A random pause below a bound that doubles, so that requests that failed together do not retry together."""
    longest = min(limits.longest_pause, limits.first_pause * 2 ** min(attempts - 1, 30))
    return (after or 0.0) + timing.between(0.0, longest)


def retry_after(headers: Mapping[str, str], today: float) -> float | None:
    """Seconds to wait, by the headers of a server's reply; None if they do not say."""
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


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to send with a request: those that are not None."""
    return {name: value for name, value in given.items() if value is not None and name not in NOT_SETTINGS}


def _message(text: str) -> str:
    """The error message in a server's reply, in any of the common formats."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() or "and nothing else"
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
