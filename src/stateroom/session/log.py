"""Entries of the log: their content, their encoding, and the kinds of entries with the facts of each.

`replaces` is the session whose place it took. A row that is seeded may lack fields of the task: `lacks` has their
names, and the verdict's `row` the fields, which come with the request to verify.

`user` is the user whose call it is, or who says it, if one was named. `by`, and in a message `person`, is the person
who made the entry by hand. An undo and a redo are rewinds with `undone`, the newest revision that was undone (see
`undo`).

`advance` is by how much the clock was moved, `shared` which shared states changed, and `events` the name, the version
and the fields of each event that was emitted. `resources` are the versions of those that the call has used (see
`resources`), and `restarted` which of these had to be started afresh before it.

`agent` is the agent's status from here on (an `AgentStatus`); any entry may have one, and `message` and
`compaction` do.

`schema` is the version of the state's class and its places. Any entry may have one: with it comes a snapshot in a newer
schema than that of the state before, which newer code has migrated.

The log of a shared state (see `shared`) has kinds of its own: an `intent` is a patch that a session is to decide about,
`call` is the patch once it is decided, and `dropped` means that it was decided against.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from stateroom.errors import BadData, InvalidArguments
from stateroom.session.lifecycle import INITIAL, AgentStatus
from stateroom.session.progress import Progress
from stateroom.state import (
    LONG_TEXT,
    Large,
    Patch,
    References,
    State,
    apply,
    decode,
    encode,
    encode_json,
    encode_patch,
    long_texts,
    put_in,
    schema_of,
    why_not_decoded,
)
from stateroom.store import Entry, Head, Loaded

Tone = Literal["calm", "accent", "person", "point", "good", "warn", "bad"]


class EntryKind(NamedTuple):
    """The properties of a kind of entry."""

    letter: str
    """Its mark in lists."""
    tone: Tone
    """The colour of its mark."""
    facts: str
    """A description of its facts."""
    patched: bool = False
    """Whether its patch makes the next state."""
    spoken: bool = False
    """Whether it is part of the agent's conversation."""
    after_verdict: bool = False
    """Whether it can follow the verdict."""
    beyond_limit: bool = False
    """Whether it may exceed the limit of the log, because it ends the session or something that was begun."""
    copied: bool = True
    """Whether a replay copies it, because it runs nothing."""


KINDS = {
    "seed": EntryKind(
        "S", "calm", "`input`: the task row; `schema`; `world`: the id of its world; `replaces`, `lacks`", copied=False
    ),
    "call": EntryKind(
        "C",
        "accent",
        "`name`, `input`, `output`, the patch; and `advance`, `shared`, `events`, `resources`, `restarted`, if any",
        patched=True,
        copied=False,
    ),
    "edit": EntryKind(
        "E", "person", "`by`, `reason`, the patch: a person changed the state without a tool", patched=True
    ),
    "fork": EntryKind("F", "person", "`by`: the person who made this fork"),
    "record": EntryKind("N", "point", "`name`, `data`: an event that leaves the state as it is"),
    "started": EntryKind("…", "accent", "`name`, `input`: an external call is about to run"),
    "failed": EntryKind(
        "!",
        "bad",
        "`name`, `input`, `error`, `code`: an external call ended without a result",
        after_verdict=True,
        beyond_limit=True,
    ),
    "asked": EntryKind(
        "?", "warn", "`name`, `input`, `question`: an external call ended by asking a question", beyond_limit=True
    ),
    "checkpoint": EntryKind("P", "point", "`name`"),
    "rewind": EntryKind(
        "R",
        "warn",
        "`to`: the revision whose state is the state again; `pending`: external calls whose outcome is unknown",
        copied=False,
    ),
    "message": EntryKind("M", "calm", "the fields of an `Update` (see `lifecycle`)", spoken=True),
    "compaction": EntryKind(
        "K",
        "calm",
        "`items`, `tokens`, `pinned`, `instructions`: where the model's view of the conversation starts",
        spoken=True,
    ),
    "verdict": EntryKind(
        "V",
        "good",
        "`verdict`: of the state before; `response`, `views`: the ones it read; `row`",
        after_verdict=True,
        beyond_limit=True,
        copied=False,
    ),
    "close": EntryKind(
        "X",
        "calm",
        "`replaced_by`: the session that took its place",
        after_verdict=True,
        beyond_limit=True,
        copied=False,
    ),
    "migrated": EntryKind("U", "calm", "`schema`", beyond_limit=True),
    "abandoned": EntryKind(
        "A", "calm", "`by`: the shared state whose intent was not decided in time", after_verdict=True
    ),
}
"""Every kind of entry in the log of a session."""

PATCHED = frozenset(name for name, kind in KINDS.items() if kind.patched)
SPOKEN = frozenset(name for name, kind in KINDS.items() if kind.spoken)
AFTER_VERDICT = frozenset(name for name, kind in KINDS.items() if kind.after_verdict)
COPIED = frozenset(name for name, kind in KINDS.items() if kind.copied)
BEYOND_LIMIT = frozenset(name for name, kind in KINDS.items() if kind.beyond_limit)

VERDICT = "\nverdict"
"""The call id of the verdict: a session has one at most."""

CHECKPOINT = "\ncheckpoint/"
"""How the call id of a checkpoint begins; its name follows."""

UNSTORABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""The errors from encoding data that cannot be stored."""

_NO_PATCH = encode_patch([])

_PAIR = b"\x92"
"""How an array of two begins in msgpack: the facts and the patch, each encoded by itself."""

_split = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw]).decode


def checked_text(what: str, value: object) -> str:
    """Check an id or another text for lookups: any that UTF-8 can encode. Raises `InvalidArguments`."""
    try:
        if isinstance(value, str):
            value.encode()
            return value
        message = f"should be a text, not {type(value).__name__}"
    except UnicodeEncodeError:
        message = f"should be a text that UTF-8 can write, and {value!r} has half of a surrogate pair"
    raise InvalidArguments(f"{what}: {message}", {what: message})


def checked_name(what: str, value: object) -> str:
    """Check a name of printable characters; our own names beside it have others."""
    if not (text := checked_text(what, value)).isprintable():
        message = "should be a text of printable characters"
        raise InvalidArguments(f"{what}: {message}", {what: message})
    return text


def checked_user(user: object) -> str:
    """Check the name of a user: not empty, and not one that looks like another user's words (`ann: Yes. bob`)."""
    if not (name := checked_name("user", user)):
        message = "should not be empty"
    elif ": " in name:
        message = "should not have a colon before a space"
    else:
        return name
    raise InvalidArguments(f"user: {message}", {"user": message})


class LogEntry(msgspec.Struct, frozen=True):
    """One step of a session's history, as `session.log()` yields it."""

    revision: int
    kind: str
    at: float
    call_id: str | None = None
    facts: dict[str, Any] = {}
    patch: Patch = []

    @property
    def name(self) -> str | None:
        """The name of the tool, the checkpoint or the record."""
        return self.facts.get("name")

    @property
    def input(self) -> Any:
        """The call's arguments, or the task row."""
        return self.facts.get("input")

    @property
    def output(self) -> Any:
        """The call's result."""
        return self.facts.get("output")

    @property
    def data(self) -> Any:
        """The data of a record."""
        return self.facts.get("data")


class Body(msgspec.Struct, frozen=True, gc=False):
    """An entry's body, as it is written."""

    data: bytes
    growth: int
    """By how many bytes the state grew at most."""
    blobs: dict[str, bytes]
    """The large values in it, by their digests."""


def write_body(facts: dict[str, Any], patch: Patch, least: float = inf) -> Body:
    """The body of an entry with these facts and this patch; `least` is when a value is large.

    The facts are JSON data, but for the fields of events, which may be of any type that a state can have. A long text
    of the input is not written a second time in the patch, which may put it into the state many times. The agent's
    status is always written out: a reader that follows the log needs it, and reads no large values for that.
    """
    references = References(least)
    if "agent" in facts:
        facts = {**facts, "agent": msgspec.Raw(encode_json(facts["agent"]))}
    facts_bytes = encode(facts, references) if "events" in facts else encode_json(facts, references)
    references.size = 0
    if patch and len(facts_bytes) > LONG_TEXT and (texts := long_texts(facts.get("input"))):
        references.number(text for text in texts if len(text) < least)
    patch_bytes = encode_patch(patch, references)
    return Body(_PAIR + facts_bytes + patch_bytes, len(patch_bytes) + references.size, references.blobs)


class Weight(msgspec.Struct, frozen=True, gc=False):
    """The sizes of a session's data, in bytes."""

    snapshot: int = 0
    """Of its last snapshot."""
    large: int = 0
    """Of the large values in the state then, each as often as it is there; they are stored by themselves."""
    tail: int = 0
    """Of the entries since."""
    state: int = 0
    """Of the state now, at most."""
    log: int = 0
    """Of all that was ever stored for the session itself: entries, snapshots and large values; not of its parents."""

    def after(self, written: int, growth: int, large: int) -> Weight:
        """The weight after an entry: bytes written, the state's growth, and bytes of large values."""
        log = self.log + written + large
        return Weight(self.snapshot, self.large, self.tail + written, self.state + growth, log)


def weight_of_snapshot(snapshot: int, large: int, log: int = 0) -> Weight:
    """The weight of a session that has just got a snapshot."""
    return Weight(snapshot, large, 0, snapshot + large, log)


class Stored(msgspec.Struct, frozen=True):
    """An entry as it is stored: its large values are missing."""

    entry: LogEntry
    large: list[Large]
    """The missing values."""
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
        facts_bytes, patch_bytes = _split(entry.body)
    except msgspec.MsgspecError as error:
        raise BadData(f"entry {entry.revision} cannot be read: {why_not_decoded(entry.body, error)}") from error
    large: list[Large] = []
    facts = decode(facts_bytes, (), large)
    in_facts = len(large)
    patch = [] if bytes(patch_bytes) == _NO_PATCH else decode(patch_bytes, long_texts(facts.get("input")), large)
    growth = len(entry.body)
    if large:
        growth += sum(value.size for value in large[in_facts:])
    read = LogEntry(entry.revision, entry.kind, entry.at, entry.call_id, facts, [tuple(step) for step in patch])
    return Stored(read, large, growth)


def read_entry(entry: Entry) -> LogEntry:
    """Read an entry with a `Large` in place of each large value; `History.read` loads the values."""
    return read_stored(entry).entry


def person(by: str | None) -> dict[str, str]:
    """The person who acts by hand, as a part of an entry's facts."""
    return {} if by is None else {"by": by}


def task_row(seed: LogEntry, verdict: Mapping[str, Any] | None) -> Any:
    """A session's task row, as it was seeded, with the fields that came with its verdict."""
    return {**seed.input, **verdict["row"]} if verdict and "row" in verdict else seed.input


def progress_after(
    progress: Progress, kind: str, call_id: str | None, facts: Mapping[str, Any], revision: int = 0
) -> Progress:
    """The progress after an entry, whose revision only a rewind needs.

    A rewind does not undo what happened outside: it says what is pending.
    """
    before = progress
    if kind == "call":
        progress = before.after(facts.get("advance", 0.0))
    elif kind == "edit":
        return replace(before, edited=True)
    elif kind == "rewind":
        return before.rewound(tuple(facts.get("pending", ())), revision)
    elif kind == "started" and call_id is not None:
        return replace(before, pending=(*before.pending, _call_of(call_id)))
    if "resources" in facts:
        progress = replace(progress, resources={**before.resources, **facts["resources"]})
    if "agent" in facts:
        return replace(progress, agent=AgentStatus.of_plain(facts["agent"]), made=())
    if before.agent is not INITIAL and kind in ("call", "failed") and call_id and before.agent.made(call_id):
        progress = replace(progress, made=(*before.made, call_id))
    if before.pending and call_id is not None and kind in ("call", "failed", "asked"):
        return replace(progress, pending=tuple(other for other in before.pending if other != _call_of(call_id)))
    return progress


def _call_of(entry_id: str) -> str:
    """The id of the call that an entry of an external call's is about."""
    return entry_id.partition("\n")[0]


# Documents: all that a session is at one revision, as plain data, and the bytes of its snapshots.

NOWHERE = Head("", "", "", 0.0, 0.0, 0)


class WorldStart(msgspec.Struct, frozen=True):
    """The world that a session's state is based on, which is stored as another session."""

    world: str
    """The session's id."""
    size: int
    """How many bytes a snapshot of it has."""
    changes: Patch = []
    """The changes since."""


class Document(NamedTuple):
    """All that a session is at one revision, as plain data."""

    state: Any
    """None while only the start is known that it follows from."""
    progress: Progress
    weight: Weight = Weight()
    digests: frozenset[str] = frozenset()
    """Of large values that are known to be stored for the session, or for one that it was forked from."""
    head: Head = NOWHERE
    """The session's, when it was read."""
    last_kind: str | None = None
    """The kind of the last entry that was read; None if the snapshot says all."""
    version: int = 1
    """Of the schema of the state."""
    fingerprint: str | None = None
    """Of that schema; None if the writer knew of none."""
    start: WorldStart | None = None
    """The start of the state, while the state itself is not loaded."""


class _Logged(msgspec.Struct):
    """The information of a snapshot about the log before it."""

    log: int = 0


_decode_logged = msgspec.msgpack.Decoder(_Logged).decode


def write_document(
    state: State, progress: Progress, references: References, start: WorldStart | None = None, *, log: int = 0
) -> bytes:
    """The body of a snapshot. With a start that the state follows from, only that is written of it.

    `log` is how many bytes were stored for the session before.
    """
    schema = schema_of(type(state))
    parts: dict[str, Any] = {
        "moment": msgspec.Raw(encode_json(progress.plain())),
        "schema": (schema.version, schema.fingerprint),
    }
    if log:
        parts["log"] = log
    if start is None:
        parts["state"] = msgspec.Raw(encode(state, references))
    else:
        parts["start"] = (start.world, start.size, msgspec.Raw(encode_patch(start.changes, references)))
    return msgspec.msgpack.encode(parts)


def read_document(body: bytes, large: list[Large] | None = None) -> Document:
    """Read the body of a snapshot. Its large values are missing; references to them are added to `large`."""
    data = decode(body, (), [] if large is None else large)
    try:
        version, fingerprint = data.get("schema", (1, None))
        progress = Progress.of_plain(data["moment"])
        if "start" not in data:
            return Document(data["state"], progress, version=version, fingerprint=fingerprint)
        world, size, changes = data["start"]
        start = WorldStart(world, size, [tuple(operation) for operation in changes])
        return Document(None, progress, version=version, fingerprint=fingerprint, start=start)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadData(f"a stored snapshot cannot be read: {error!r}") from error


def world_is_gone(session: str, world: str) -> BadData:
    """The error for a session whose world is missing."""
    return BadData(f"session {session!r} is damaged: its world {world!r} does not exist")


def logged_bytes(loaded: Loaded) -> int:
    """How many bytes the session's own snapshots and entries have, without large values."""
    size = sum(len(entry.body) for entry in loaded.entries)
    if loaded.snapshot is None:
        return size
    try:
        return size + len(loaded.snapshot.body) + _decode_logged(loaded.snapshot.body).log
    except msgspec.DecodeError as error:
        raise BadData(f"a stored snapshot cannot be read: {error}") from error


def changed(document: Document, changes: list[LogEntry]) -> Document:
    progress = document.progress
    for entry in changes:
        if entry.kind in PATCHED and document.start is not None:
            document.start.changes.extend(entry.patch)
        elif entry.kind in PATCHED:
            apply(document.state, entry.patch)
        progress = progress_after(progress, entry.kind, entry.call_id, entry.facts, entry.revision)
    return document._replace(progress=progress)
