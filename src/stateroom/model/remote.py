"""Remote models with OpenAI's Responses or Chat Completions API: requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model.chat import CHAT_FIELD, chat_tools, completion_items, messages_of
from stateroom.model.endpoint import EndpointPool
from stateroom.model.items import with_names
from stateroom.model.model import Answer, Model, Request
from stateroom.model.segments import without_tokens
from stateroom.model.settings import chat_settings, object_at, usage_of

NOT_SETTINGS = frozenset({"model", "input", "messages", "tools", "stream", "stream_options", "background", "n"})
"""Parameters that settings cannot override."""

ENCRYPTED = "reasoning.encrypted_content"
"""The `include` parameter, needed to send the reasoning back with the next request."""

TOKENS = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
"""The chat parameters that make vLLM report the tokens of an answer and their log-probabilities."""

PASSING_CODES = frozenset({"server_error", "rate_limit_exceeded"})
"""Error codes after which a retry may succeed later."""


class ResponsesModel(Model):
    """A model with the Responses API; the server stores nothing.

    This API has no seed. With `sends_seed`, the request has the seed in its `metadata`, for servers that read it there.
    """

    def __init__(self, pool: EndpointPool, *, sends_seed: bool) -> None:
        self.name = pool.name
        self._pool = pool
        self._sends_seed = sends_seed
        self._includes_reasoning = True

    async def answer(self, request: Request) -> Answer:
        body = self._body(request)
        try:
            reply = await self._pool.ask("responses", body, request)
        except ModelFailed as error:
            if "include" in request.settings or "encrypted" not in str(error).lower():
                raise
            self._includes_reasoning = False  # a model without reasoning refuses this parameter
            reply = await self._pool.ask("responses", self._body(request), request)
        return self._read(reply)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {"store": False} | ({"include": [ENCRYPTED]} if self._includes_reasoning else {})
        body |= settings_of(request.settings)
        if self._sends_seed:
            body["metadata"] = {"seed": str(request.seed), **body.get("metadata", {})}
        if request.tools:
            body["tools"] = [*request.tools]
        items = ({name: value for name, value in item.items() if name != CHAT_FIELD} for item in request.items)
        return body | {"input": with_names(without_tokens(items))}

    def _read(self, reply: dict[str, Any]) -> Answer:
        status, error, why = reply.get("status"), object_at(reply, "error"), object_at(reply, "incomplete_details")
        if status not in (None, "completed", "incomplete") or why.get("reason") == "content_filter":
            kind = ModelUnavailable if error.get("code") in PASSING_CODES else ModelFailed
            raise kind(f"{self.name} gave no answer: the response is {status}, {error or why!r:.500}")
        output = reply.get("output")
        if not isinstance(output, list):
            raise ModelFailed(f"{self.name} answered with a response without output: {reply!r:.300}")
        return Answer(output, usage_of(reply.get("usage")), truncated=status == "incomplete")


class ChatModel(Model):
    """A model with the Chat Completions API."""

    def __init__(self, pool: EndpointPool) -> None:
        self.name = pool.name
        self._pool = pool

    async def answer(self, request: Request) -> Answer:
        reply = await self._pool.ask("chat", _chat_body(request), request)
        try:
            choice, message = _choice(reply)
            items = completion_items(message)
        except ModelFailed as error:
            raise ModelFailed(f"{self.name}: {error}") from None
        return Answer(items, usage_of(reply.get("usage")), truncated=choice.get("finish_reason") == "length")


def _chat_body(request: Request) -> dict[str, Any]:
    settings = settings_of(request.settings)
    instructions = settings.pop("instructions", None)
    messages = messages_of(without_tokens(request.items))
    if instructions:
        messages = [{"role": "system", "content": instructions}, *messages]
    body = {"seed": request.seed, **chat_settings(settings), "messages": messages}
    body |= TOKENS if request.tokens else {}
    return body | ({"tools": chat_tools(request.tools)} if request.tools else {})


def _choice(reply: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first choice of a completion, and its message."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ModelFailed(f"a completion must have a choice with a message: {reply!r:.300}")
    if choice.get("finish_reason") == "content_filter":
        raise ModelFailed("a content filter withheld the answer")
    return choice, choice["message"] | _tokens(reply, choice)


def _tokens(reply: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """The token fields of an answer, if the server reports them next to the message, as vLLM does."""
    fields = {"prompt_token_ids": reply.get("prompt_token_ids"), "generation_token_ids": choice.get("token_ids")}
    tokens = object_at(choice, "logprobs").get("content")
    if fields["generation_token_ids"] is not None and isinstance(tokens, list):
        fields["generation_log_probs"] = [token.get("logprob") for token in tokens if isinstance(token, dict)]
    return {name: value for name, value in fields.items() if value is not None}


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to send with a request, without those that are None."""
    return {name: value for name, value in settings.items() if value is not None and name not in NOT_SETTINGS}
