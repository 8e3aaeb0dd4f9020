"""What is on record of an episode: the calls in its response, and those in its session's log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from stateroom.model import Item
from stateroom.session import LogEntry
from stateroom.state import to_json

NOT_AGAIN = frozenset({"timeout", "unknown_outcome", "shared_conflict"})
"""Codes of failures that have to do with when, and beside whom, a call was made: they need not come again."""


class Spoken(NamedTuple):
    """A tool call in a response, and what came back."""

    item: Item
    name: str
    """Of the tool, without what an MCP client may have put before it."""
    id: str
    """The id that the runner makes such a call under."""
    output: Any
    """As data, if it is JSON."""

    @property
    def input(self) -> Any:
        """The arguments, as data if they are JSON."""
        return decoded(self.item.get("arguments") or "{}")

    @property
    def error(self) -> Any:
        """The code of the failure that it came to; None if it went well, as far as one can tell."""
        error = self.output.get("error") if isinstance(self.output, dict) and len(self.output) == 1 else None
        return error.get("code") if isinstance(error, dict) else None

    def is_in(self, entry: LogEntry) -> bool:
        """Whether a log entry may be of this call."""
        if entry.kind not in ("call", "failed") or entry.name != self.name or not same(entry.input, self.input):
            return False
        return same(entry.output, self.output) if entry.kind == "call" else self.error == entry.facts.get("code")


def spoken(response: Any, tools: Collection[str]) -> Iterator[Spoken]:
    """The calls of a response that were answered, in the order of the answers."""
    items = response.get("output") if isinstance(response, dict) else None
    waiting: list[tuple[Item, str]] = []
    step, index, asking = -1, 0, False
    for item in items if isinstance(items, list) else ():
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            step, index = (step, index + 1) if asking else (step + 1, 0)
            asking = True
            waiting.append((item, f"0.{step}.{index}"))
        elif kind == "function_call_output" and waiting:
            asking = False
            own = (at for at, (call, _) in enumerate(waiting) if call.get("call_id") == item.get("call_id"))
            call, call_id = waiting.pop(next(own, 0))
            name = str(call.get("name"))
            bare = name.rpartition("__")[2]
            yield Spoken(call, bare if name not in tools and bare in tools else name, call_id, decoded(item["output"]))


def merged(entries: Sequence[LogEntry], said: Sequence[Spoken]) -> Iterator[LogEntry | Spoken]:
    """A log, and between its entries what was said and has left none there: reads and failed calls."""
    at = 0
    for entry in entries:
        found = next((number for number in range(at, len(said)) if said[number].is_in(entry)), None)
        if found is not None:
            yield from said[at:found]
            at = found + 1
        yield entry
    yield from said[at:]


def decoded(text: Any) -> Any:
    """What a text says as JSON; itself, if it is none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON data; a number that is none is the same as itself."""
    return bool(one == other) or to_json(one) == to_json(other)
