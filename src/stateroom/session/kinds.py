"""The kinds of log entries: what each holds, what it does to a session, and how it is shown.

The log of a shared state (see `shared`) has kinds of its own: an `intent` is a patch that a session is to decide about,
`call` is the patch once it is decided, and `dropped` means that it was decided against.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Tone = Literal["calm", "accent", "person", "point", "good", "warn", "bad"]


class EntryKind(NamedTuple):
    """What entries of one kind have in common."""

    letter: str
    """Its mark in lists."""
    tone: Tone
    """The colour of its mark."""
    facts: str
    """What its facts say."""
    patched: bool = False
    """Its patch makes the next state."""
    spoken: bool = False
    """It is part of the agent's conversation."""
    after_verdict: bool = False
    """A session that has its verdict still gets it."""
    beyond_limit: bool = False
    """A session gets it however long its log is, because it ends the session, or what was begun before."""
    copied: bool = True
    """A replay appends a copy of it, because it runs nothing."""


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
