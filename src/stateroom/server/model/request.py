"""A client's request to a model and the answer, in no API's words."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any

import msgspec

from stateroom.agent import Estimate
from stateroom.model import Answer, Item, Request, Usage, text_of
from stateroom.server.http import wrong_field


class ModelRequest(msgspec.Struct, frozen=True):
    """A request to a model, and the form of its answer."""

    request: Request
    body: Mapping[str, Any]
    """The body that the client sent."""
    stream: bool
    """Whether the client wants server-sent events."""


class ModelResponse(msgspec.Struct, frozen=True):
    """A model's answer to a request."""

    asked: ModelRequest
    answer: Answer
    model: str
    """The model's name."""
    id: str = msgspec.field(default_factory=lambda: token_hex(12))
    at: float = msgspec.field(default_factory=time.time)
    first: int = 0
    """The place of its first item among those that were added together."""
    conversation: str | None = None
    """The conversation that it is part of."""

    @property
    def usage(self) -> Usage:
        """The number of tokens, as the model reports it, or else an estimate."""
        if self.answer.usage is not None:
            return self.answer.usage
        request = self.asked.request
        given: list[Item] = [*request.items, *request.tools]
        instructions: Any = request.settings.get("instructions")
        if instructions:
            given.append({"type": "message", "content": instructions})
        count = Estimate().count
        return Usage(sum(map(count, given)), sum(map(count, self.answer.items)))


def model_request(
    body: Mapping[str, Any], items: Sequence[Item], tools: Sequence[Item], settings: Mapping[str, Any]
) -> ModelRequest:
    """The request with the conversation, tools and settings of a body."""
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise wrong_field("stream", "should be true or false")
    seed = _given_seed(body)
    seed = _seed_of(items) if seed is None else seed
    return ModelRequest(Request(items, tools, settings, seed, _answers_in(items)), body, bool(stream))


def objects_in(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that must be a list of objects; one that is missing or null is empty."""
    objects = body.get(name)
    if objects is None:
        return []
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise wrong_field(name, "should be a list of objects")
    return objects


def _is_models(item: Item) -> bool:
    """Whether an item is the model's own, and not a message to it."""
    kind = item.get("type")
    return item.get("role") == "assistant" if kind == "message" else kind != "function_call_output"


def _given_seed(body: Mapping[str, Any]) -> int | None:
    """The client's seed: a parameter of Chat Completions, and in the metadata of Responses, which has none."""
    metadata = body.get("metadata")
    for name, given in (
        ("seed", body.get("seed")),
        ("metadata.seed", metadata.get("seed") if isinstance(metadata, dict) else None),
    ):
        if given is None:
            continue
        try:
            return int(given)
        except (TypeError, ValueError, OverflowError):
            raise wrong_field(name, "should be a whole number") from None
    return None


def _seed_of(items: Sequence[Item]) -> int:
    """A seed from the start of a conversation: all requests of an episode have the same."""
    first = next((place for place, item in enumerate(items) if _is_models(item)), len(items))
    opening = [[item.get("role"), text_of(item)] for item in items[:first]]
    return int.from_bytes(blake2b(json.dumps(opening).encode(), digest_size=4).digest())


def _answers_in(items: Sequence[Item]) -> int:
    """Number of the model's answers in a conversation; its items in a row are one answer."""
    own = [_is_models(item) for item in items]
    return sum(mine and not before for before, mine in zip([False, *own], own, strict=False))
