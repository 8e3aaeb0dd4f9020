"""`Model`: the interface of everything that answers a conversation."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import add
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import astuple

from stateroom.errors import ModelFailed, StateroomError
from stateroom.model.items import Item, is_content
from stateroom.model.segments import without_tokens
from stateroom.session import contained

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class Request(msgspec.Struct, frozen=True):
    """A request to a model. Do not change its lists, which may belong to the conversation."""

    items: Sequence[Item]
    """The visible part of the conversation, as Responses items."""
    tools: Sequence[Item] = ()
    """The functions that the model may call, in the format of the Responses API."""
    settings: Mapping[str, Any] = NO_SETTINGS
    """Other parameters of the Responses API, such as `temperature`, `max_output_tokens` and `tool_choice`."""
    seed: int = 0
    """The seed of the episode, for models that support one."""
    step: int = 0
    """The number of earlier answers in the episode."""
    tokens: bool = False
    """Whether the answer must include its exact tokens (see `stateroom.model.segments`)."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts of one or more answers."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Cached input tokens."""
    reasoning_tokens: int = 0
    """Output tokens used for reasoning."""

    def plain(self) -> dict[str, Any]:
        """The `usage` object of the Responses API."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))


class Answer(msgspec.Struct, frozen=True):
    """The answer of a model: tool calls, or a message without calls; reasoning may come first."""

    items: list[Item]
    usage: Usage | None = None
    """Token counts, if the model reports them."""
    truncated: bool = False
    """Whether an output limit cut the answer off."""


class Model(ABC):
    """Answers conversations, which are lists of items of OpenAI's Responses API."""

    name: str = "model"
    """The name in files and messages, by default the name of the class. It must not contain a secret."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @abstractmethod
    async def answer(self, request: Request) -> Answer:
        """Return the next items of a conversation.

        Raises `ModelUnavailable` if the model cannot be reached or is too busy, so a retry may succeed later, and
        `ModelFailed` if it refuses the request or its answer cannot be read.
        """


async def answer_of(model: Model, request: Request) -> Answer:
    """Ask a model, and check its answer. Raises `ModelFailed` if the answer is invalid."""
    try:
        with contained:
            return _checked(await model.answer(request), model.name, request)
    except StateroomError:
        raise
    except Exception as error:
        raise ModelFailed(f"{model.name} raised {type(error).__name__}: {error}") from error


def _checked(answer: Any, name: str, request: Request) -> Answer:
    if not isinstance(answer, Answer):
        raise ModelFailed(f"{name} must return an Answer, not {answer!r:.200}")
    items = answer.items
    if not isinstance(items, list) or not all(map(_is_item, items)):
        raise ModelFailed(f"{name} must answer with a list of Responses items, not {items!r:.200}")
    try:
        json.dumps(without_tokens(items) if request.tokens else items)  # the caller checks requested tokens
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFailed(f"{name} answered with items that are not JSON: {error}") from error
    for item in items:
        if item["type"] == "function_call_output":
            raise ModelFailed(f"{name} invented the result of a tool call: {item!r:.200}")
        if item["type"] == "function_call" and not _is_call(item):
            raise ModelFailed(f"{name} made a tool call without call_id, name or arguments: {item!r:.200}")
        if item["type"] in ("message", "reasoning") and not is_content(item.get("content")):
            raise ModelFailed(f"{name} returned a message without a text or a list of parts: {item!r:.200}")
    if answer.usage is not None and not _is_usage(answer.usage):
        raise ModelFailed(f"{name} must report its Usage in whole numbers, not {answer.usage!r:.200}")
    return answer


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("type"), str)


def _is_call(item: Item) -> bool:
    return isinstance(item.get("call_id"), str) and isinstance(item.get("name"), str) and "arguments" in item


def _is_usage(usage: Any) -> bool:
    return isinstance(usage, Usage) and all(isinstance(count, int) for count in astuple(usage))
