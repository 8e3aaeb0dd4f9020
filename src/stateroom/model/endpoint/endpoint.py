"""An endpoint: asked by the `openai` SDK, as often as its limits allow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from stateroom.errors import ModelFailed, NotFound
from stateroom.model.endpoint.address import Address
from stateroom.model.endpoint.limits import Limits
from stateroom.model.endpoint.persistence import Timing, Trouble, persist, retry_after

try:
    import openai
except ModuleNotFoundError as error:
    raise NotFound(f"models behind an address need {error.name}: pip install 'stateroom[openai]'") from error

API = Literal["responses", "chat"]

CONNECT = 10.0
"""Seconds that it may take to be connected."""

PASSING = frozenset({408, 409, 429})
"""Statuses of replies, beside those from 500 on, after which another attempt may do."""

NOT_SETTINGS = frozenset({"model", "input", "messages", "tools", "stream", "stream_options", "background", "n"})
"""What a request has from elsewhere, or not at all, whatever the settings say."""


class Endpoint:
    """A server of models; all who ask it share its connections and its limits. To be closed by whoever made it."""

    def __init__(self, name: str, address: Address, limits: Limits, timing: Timing | None = None) -> None:
        self.name = name
        self.address = address
        self._limits = limits
        self._timing = timing or Timing()
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._client = openai.AsyncOpenAI(
            api_key=address.key,
            base_url=address.url,
            max_retries=0,  # the limits here are ours
            timeout=openai.Timeout(None, connect=CONNECT),
        )
        # Here, as the SDK imports much for them, and that is not to be part of an attempt.
        self._respond = self._client.responses.with_raw_response.create
        self._complete = self._client.chat.completions.with_raw_response.create

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(self, api: API, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's reply to a request, as JSON data."""
        send = self._ask_responses if api == "responses" else self._ask_chat

        async def attempt(seconds: float) -> str | Trouble:
            return await self._attempt(send, body, seconds)

        async with self._slots:
            text = await persist(attempt, self._limits, self._timing, self.name)
        return self._decoded(text)

    async def _ask_responses(self, body: Mapping[str, Any]) -> str:
        return (await self._respond(model=self.address.model, extra_body=body)).text

    async def _ask_chat(self, body: Mapping[str, Any]) -> str:
        return (await self._complete(model=self.address.model, messages=(), extra_body=body)).text  # which has them

    async def _attempt(
        self, send: Callable[[Mapping[str, Any]], Awaitable[str]], body: Mapping[str, Any], seconds: float
    ) -> str | Trouble:
        """The text of a reply, or the trouble. What the SDK raises goes no further: it may have the key in it."""
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
            said += " (is OPENAI_API_KEY what it should be?)"
        passing = (status in PASSING or status >= 500) and headers.get("x-should-retry") != "false"
        return Trouble(f"answered {status}: {said}", passing, retry_after(headers, self._timing.today()))

    def _decoded(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
            # A model that is cut off may leave half of a character, which nobody could store.
            if "\\ud" in text or "\\uD" in text:
                found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ModelFailed(f"{self.name} answered with something that is not a JSON object: {text!r:.200}")
        return found


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a request that are to be sent; what is null is as good as not there."""
    return {name: value for name, value in given.items() if value is not None and name not in NOT_SETTINGS}


def _message(text: str) -> str:
    """What a server says of an error, in any of the shapes that are common."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() or "and nothing else"
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
