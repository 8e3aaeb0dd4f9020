"""Recorded calls: those in an episode's response, and those in its session's log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from stateroom.session.lifecycle import Item
from stateroom.session.log import LogEntry
from stateroom.state import to_json

NOT_REPEATABLE = frozenset({"timeout", "unknown_outcome", "shared_conflict"})
"""Codes of failures that depend on timing or on other sessions: they need not happen again."""


class RecordedCall(NamedTuple):
    """A tool call in a response, and its output."""

    item: Item
    name: str
    """The tool, without the prefix of an MCP client."""
    id: str
    """The call id that the runner gives to such a call."""
    output: Any
    """As data, if it is JSON."""

    @property
    def input(self) -> Any:
        """The arguments, as data if they are JSON."""
        return parsed(self.item.get("arguments") or "{}")

    @property
    def error(self) -> Any:
        """The code of the failure; None if the output shows none."""
        error = self.output.get("error") if isinstance(self.output, dict) and len(self.output) == 1 else None
        return error.get("code") if isinstance(error, dict) else None

    def is_in(self, entry: LogEntry) -> bool:
        """Whether a log entry may be of this call."""
        if entry.kind not in ("call", "failed") or entry.name != self.name or not same(entry.input, self.input):
            return False
        return same(entry.output, self.output) if entry.kind == "call" else self.error == entry.facts.get("code")


def recorded_calls(response: Any, tools: Collection[str]) -> Iterator[RecordedCall]:
    """The calls of a response that have outputs, in the order of the outputs."""
    items = response.get("output") if isinstance(response, dict) else None
    waiting: list[tuple[Item, str]] = []
    step, index, answering = -1, 0, False
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        is_answer = kind != "function_call_output" and item.get("role") != "user"
        if is_answer and not answering:
            step, index = step + 1, 0
        answering = is_answer
        if kind == "function_call":
            waiting.append((item, f"0.{step}.{index}"))
            index += 1
        elif kind == "function_call_output" and waiting:
            own = (at for at, (call, _) in enumerate(waiting) if call.get("call_id") == item.get("call_id"))
            call, call_id = waiting.pop(next(own, 0))
            name = str(call.get("name"))
            bare = name.rpartition("__")[2]
            name = bare if name not in tools and bare in tools else name
            yield RecordedCall(call, name, call_id, result_of(item))


def merged(entries: Sequence[LogEntry], calls: Sequence[RecordedCall]) -> Iterator[LogEntry | RecordedCall]:
    """A log, with the calls in between that it has no entries of: reads and failed calls."""
    at = 0
    for entry in entries:
        place = next((number for number in range(at, len(calls)) if calls[number].is_in(entry)), None)
        if place is not None:
            yield from calls[at:place]
            at = place + 1
        yield entry
    yield from calls[at:]


def result_of(item: Item) -> Any:
    """The result in a `function_call_output`, as data if it is JSON; it may come as parts, such as `input_text`."""
    output = item.get("output")
    if isinstance(output, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in output
    ):
        output = "".join(part["text"] for part in output)
    return parsed(output)


def parsed(text: Any) -> Any:
    """A text parsed as JSON, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON data; NaN is the same as itself."""
    return bool(one == other) or to_json(one) == to_json(other)
