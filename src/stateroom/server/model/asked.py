"""What a client asks of a model, whichever API it speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from stateroom.model import Item, Request, text_of
from stateroom.server.faults import wrong_field


class Asked(msgspec.Struct, frozen=True):
    """A request, and how its answer is wanted."""

    request: Request
    body: Mapping[str, Any]
    """What came in."""
    stream: bool
    """Whether the answer is to come as server-sent events."""


def asked(body: Mapping[str, Any], items: Sequence[Item], tools: Sequence[Item], settings: Mapping[str, Any]) -> Asked:
    """A request whose conversation, tools and settings were read from a body."""
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise wrong_field("stream", "should be true or false")
    seed = _seed(body)
    luck = _luck(items) if seed is None else seed
    return Asked(Request(items, tools, settings, luck, _answers_in(items)), body, bool(stream))


def a_list(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that must be a list of objects; one that is missing or null is empty."""
    found = body.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise wrong_field(name, "should be a list of objects")
    return found


def is_models(item: Item) -> bool:
    """Whether an item is the model's own, and not somebody's word to it."""
    kind = item.get("type")
    return item.get("role") == "assistant" if kind == "message" else kind != "function_call_output"


def _seed(body: Mapping[str, Any]) -> int | None:
    """The seed that a client gives: of its own in chat, and in the metadata where an API knows none."""
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


def _luck(items: Sequence[Item]) -> int:
    """A seed from how a conversation opens: all requests of an episode have the same."""
    first = next((place for place, item in enumerate(items) if is_models(item)), len(items))
    opening = [[item.get("role"), text_of(item)] for item in items[:first]]
    return int.from_bytes(blake2b(json.dumps(opening).encode(), digest_size=4).digest())


def _answers_in(items: Sequence[Item]) -> int:
    """How often the model has answered in a conversation; what it said in a row is one answer."""
    own = [is_models(item) for item in items]
    return sum(mine and not before for before, mine in zip([False, *own], own, strict=False))
