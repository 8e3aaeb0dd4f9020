"""Endpoints: servers with OpenAI's Responses or Chat Completions API, asked through the `openai` SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from math import isfinite
from time import time
from typing import Any, Literal, NamedTuple

from stateroom.errors import MissingPackage, ModelFailed
from stateroom.model.address import NO_KEY, ModelAddress
from stateroom.model.model import Request
from stateroom.session import parsed

try:
    import openai
except ModuleNotFoundError as error:
    raise MissingPackage("a remote model", error.name, "'stateroom[openai]'") from error

API = Literal["responses", "chat"]

CONNECT = 10.0
"""Seconds to connect."""

PASSING = frozenset({408, 409, 429})
"""HTTP statuses, besides those from 500 on, after which another attempt may succeed."""

OUTPUT_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
"""Parameters that limit the tokens of an answer."""

CHARACTERS_PER_TOKEN = 4
"""What tokens are estimated by."""


class Question(NamedTuple):
    """A request as an endpoint gets it."""

    api: API
    body: Mapping[str, Any]
    key: str
    """The same whenever the same step of an episode is asked, so that a server can charge the answer once."""
    tokens: int
    """An estimate of what it uses: the tokens of the request, and those that the answer may have."""

    @classmethod
    def of(cls, api: API, model: str, body: Mapping[str, Any], request: Request) -> Question:
        """A question for a request. Raises `TypeError` or `ValueError` if the body is not JSON."""
        text = json.dumps([model, request.seed, request.step, body], sort_keys=True)
        answer = next((body[name] for name in OUTPUT_LIMITS if isinstance(body.get(name), int)), 0)
        key = blake2b(text.encode(), digest_size=16).hexdigest()
        return cls(api, body, key, len(text) // CHARACTERS_PER_TOKEN + answer)


class Trouble(NamedTuple):
    """Why an attempt failed."""

    message: str
    passing: bool
    """Whether another attempt may succeed."""
    after: float | None = None
    """Seconds that the server asks to wait."""
    health: Literal["well", "failing", "gone"] = "well"
    """What it says about the server: a busy one is well, and one that takes no connection is gone."""


class Endpoint:
    """A connection to one server of models. Close it after use."""

    def __init__(self, name: str, address: ModelAddress, today: Callable[[], float] = time) -> None:
        self.name = name
        """The model and the server, as messages name them."""
        self.address = address
        self._today = today
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

    async def attempt(self, question: Question, seconds: float) -> dict[str, Any] | Trouble:
        """Send a request once, and return the server's reply as JSON data, or the trouble.

        The SDK's errors go no further: they may contain the key.
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
            return Trouble(self.address.hidden(f"cannot be asked: {error}"), passing=False)
        return self._decoded(text)

    async def _send(self, question: Question) -> str:
        model, body, headers = self.address.model, question.body, {"Idempotency-Key": question.key}
        if question.api == "responses":
            return (await self._respond(model=model, extra_body=body, extra_headers=headers)).text
        reply = await self._complete(model=model, messages=(), extra_body=body, extra_headers=headers)
        return reply.text  # the body has the messages

    def _refusal(self, error: openai.APIStatusError) -> Trouble:
        status, headers = error.status_code, error.response.headers
        said = self.address.hidden(_message(error.response.text))[:1000]
        if status in (401, 403):
            variable, sent = self.address.variable, self.address.key != NO_KEY
            said += f" (is the key in {variable} right?)" if sent else f" (no key was sent: set {variable})"
        passing = (status in PASSING or status >= 500) and headers.get("x-should-retry") != "false"
        after = retry_after(headers, self._today())
        return Trouble(f"answered {status}: {said}", passing, after, "failing" if passing and status >= 500 else "well")

    def _decoded(self, text: str) -> dict[str, Any]:
        reply = parsed(text)
        if not isinstance(reply, dict):
            raise ModelFailed(f"{self.name} answered with something that is not a JSON object: {text!r:.200}")
        if "\\ud" in text or "\\uD" in text:
            # A model that is cut off may leave half of a surrogate pair, which no store takes.
            return dict(json.loads(json.dumps(reply, ensure_ascii=False).encode(errors="replace")))
        return reply


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


def _message(text: str) -> str:
    """The error message in a server's reply, in any of the common formats."""
    message = parsed(text)
    for name in ("error", "message", "detail"):
        if isinstance(message, dict) and message.get(name):
            message = message[name]
    if isinstance(message, str):
        return message.strip() or "and nothing else"
    return json.dumps(message, ensure_ascii=False)
