"""A model that speaks Chat Completions."""

from __future__ import annotations

from typing import Any

from stateroom.errors import ModelFailed
from stateroom.model.chat import chat_tools, completion_items, messages_of
from stateroom.model.chat_settings import chat_settings, usage_of
from stateroom.model.endpoint.endpoint import Endpoint, settings_of
from stateroom.model.model import Answer, Model, Request


class ChatModel(Model):
    """Asks an endpoint by the Chat Completions API."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint

    async def answer(self, request: Request) -> Answer:
        reply = await self._endpoint.ask("chat", _body(request))
        try:
            choice, message = _choice(reply)
            items = completion_items(message)
        except ModelFailed as error:
            raise ModelFailed(f"{self.name}: {error}") from None
        return Answer(items, usage_of(reply.get("usage")), truncated=choice.get("finish_reason") == "length")


def _body(request: Request) -> dict[str, Any]:
    settings = settings_of(request.settings)
    instructions = settings.pop("instructions", None)
    messages = messages_of(request.items)
    if instructions:
        messages = [{"role": "system", "content": instructions}, *messages]
    body = {"seed": request.seed, **chat_settings(settings), "messages": messages}
    return body | ({"tools": chat_tools(request.tools)} if request.tools else {})


def _choice(reply: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one choice of a completion, and its message."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ModelFailed(f"a completion must have a choice with a message: {reply!r:.300}")
    if choice.get("finish_reason") == "content_filter":
        raise ModelFailed("the answer was held back by a content filter")
    return choice, choice["message"] | _tokens(reply, choice)


def _tokens(reply: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """What a trainer wants to know, where vLLM tells of it beside the message, if it was asked to."""
    beside = {"prompt_token_ids": reply.get("prompt_token_ids"), "generation_token_ids": choice.get("token_ids")}
    return {name: value for name, value in beside.items() if value is not None}
