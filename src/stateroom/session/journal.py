"""Entries: what each step of a session says, and its bytes.

| kind | facts |
|---|---|
| `seed` | `input`: the task row; `replaces`: the session whose place this one took |
| `call` | `name`, `input`, `output`, `advance` if the clock was moved; the patch |
| `started` | `name`, `input`: an external call is about to run |
| `failed` | `name`, `input`, `error`, `code`: an external call ended without a result |
| `checkpoint` | `name` |
| `rewind` | `to`: the revision whose state is the state again |
| `verdict` | `verdict`: of the state at the revision before; `response`: a digest of it, if it was looked at |
| `close` | `replaced_by`: the session that took its place |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from stateroom.errors import BadData
from stateroom.state import Patch, decode, encode_json, encode_patch, long_texts
from stateroom.state.codec import LONG_TEXT
from stateroom.store import Entry

_PAIR = b"\x92"
"""How an array of two begins in msgpack: the facts and the patch, each encoded by itself."""


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


def write_body(facts: dict[str, Any], patch: Patch) -> tuple[bytes, int]:
    """The bytes of an entry's facts, which are JSON data, and of its patch; and by how much the state grew at most.

    A long text of the input is not written a second time in the patch, which may put it into the state many times.
    """
    said = encode_json(facts)
    texts = list(long_texts(facts.get("input"))) if patch and len(said) > LONG_TEXT else []
    changed = encode_patch(patch, {text: index for index, text in enumerate(texts)})
    grown = len(encode_patch(patch, {})) if texts else len(changed)
    return _PAIR + said + changed, grown


def read_entry(entry: Entry) -> LogEntry:
    """A stored entry, understood."""
    try:
        said, changed = msgspec.msgpack.decode(entry.body, type=tuple[msgspec.Raw, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise BadData(f"entry {entry.revision} cannot be read: {error}") from error
    facts = decode(said)
    patch = decode(changed, list(long_texts(facts.get("input"))))
    return LogEntry(entry.revision, entry.kind, entry.at, entry.call_id, facts, [tuple(step) for step in patch])
