"""Entries: what each step of a session says, and its bytes.

| kind | facts |
|---|---|
| `seed` | `input`: the task row; `replaces`: the session whose place this one took |
| `call` | `name`, `input`, `output`, `advance` if the clock was moved, `shared` if shared states changed; the patch |
| `started` | `name`, `input`: an external call is about to run |
| `failed` | `name`, `input`, `error`, `code`: an external call ended without a result |
| `checkpoint` | `name` |
| `rewind` | `to`: the revision whose state is the state again |
| `verdict` | `verdict`: of the state at the revision before; `response`: a digest of it, if it was looked at |
| `close` | `replaced_by`: the session that took its place |
| `abandoned` | `by`: the shared state whose intent was not decided in time |

In the log of a shared state (see `scopes`), `session` and `revision` say whose change it is:

| kind | what |
|---|---|
| `intent` | the patch that the session is to decide about |
| `call` | the patch, decided |
| `dropped` | decided against |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from stateroom.errors import BadData
from stateroom.state import Elsewhere, Large, Patch, decode, encode_json, encode_patch, long_texts, put_in
from stateroom.state.codec import LONG_TEXT, why_not_decoded
from stateroom.store import Entry

_NO_PATCH = encode_patch([])

_PAIR = b"\x92"
"""How an array of two begins in msgpack: the facts and the patch, each encoded by itself."""

_split = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode


@dataclass(frozen=True)
class LogEntry:
    """One step of a session's history, as `session.log()` gives it."""

    revision: int
    kind: str
    at: float
    call_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    patch: Patch = field(default_factory=list)

    @property
    def name(self) -> str | None:
        """The tool's or checkpoint's name."""
        return self.facts.get("name")

    @property
    def input(self) -> Any:
        """The call's arguments, or the task row."""
        return self.facts.get("input")

    @property
    def output(self) -> Any:
        """What the call returned."""
        return self.facts.get("output")


class Body(msgspec.Struct, frozen=True):
    """An entry's body, as it is written."""

    data: bytes
    growth: int
    """By how many bytes the state grew at most."""
    blobs: dict[str, bytes]
    """The large values in it, by their digests."""


def write_body(facts: dict[str, Any], patch: Patch, least: float = inf) -> Body:
    """The body of an entry with these facts, which are JSON data, and this patch; `least` is when a value is large.

    A long text of the input is not written a second time in the patch, which may put it into the state many times.
    """
    elsewhere = Elsewhere(least)
    said = encode_json(facts, elsewhere)
    elsewhere.size = 0
    if patch and len(said) > LONG_TEXT:
        elsewhere.know(text for text in long_texts(facts.get("input")) if len(text) < least)
    changed = encode_patch(patch, elsewhere)
    return Body(_PAIR + said + changed, len(changed) + elsewhere.size, elsewhere.blobs)


class Stored(msgspec.Struct, frozen=True):
    """An entry as it is stored: its large values are missing."""

    entry: LogEntry
    large: list[Large]
    """What is missing."""
    growth: int
    """By how many bytes the state grew at most."""

    def with_large(self, values: Mapping[Large, Any]) -> LogEntry:
        """The whole entry."""
        put_in(self.entry.facts, values)
        put_in(self.entry.patch, values)
        return self.entry


def read_stored(entry: Entry) -> Stored:
    """A stored entry, understood."""
    try:
        said, changed = _split(entry.body)
    except msgspec.MsgspecError as error:
        raise BadData(f"entry {entry.revision} cannot be read: {why_not_decoded(entry.body, error)}") from error
    large: list[Large] = []
    facts = decode(said, (), large)
    in_facts = len(large)
    patch = [] if bytes(changed) == _NO_PATCH else decode(changed, list(long_texts(facts.get("input"))), large)
    growth = len(entry.body)
    if large:
        growth += sum(value.size for value in large[in_facts:])
    read = LogEntry(entry.revision, entry.kind, entry.at, entry.call_id, facts, [tuple(step) for step in patch])
    return Stored(read, large, growth)


def read_entry(entry: Entry) -> LogEntry:
    """The same for whoever needs no large value: a `Large` stands in the place of each. `History.read` has them all."""
    return read_stored(entry).entry
