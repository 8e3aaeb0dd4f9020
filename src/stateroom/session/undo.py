"""Undo and redo: finding the revision to restore from the log alone.

A step is a call, an edit, or something that is said to the agent; all that the agent says and does about it belongs to
it. A step that was undone is not on the line that leads to the state any more, so the next undo takes the one before.
An undo and a redo are rewinds which name the newest revision that was `undone`: a redo leads towards it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from stateroom.errors import InvalidArguments
from stateroom.session.history import History
from stateroom.session.log import PATCHED, LogEntry
from stateroom.store import Head


class RewindTarget(NamedTuple):
    """Where a rewind leads."""

    to: int
    undone: int | None = None
    """For an undo or a redo: the newest revision that was undone."""
    steps: int = 0
    """The number of steps."""

    def facts(self) -> dict[str, Any]:
        """The facts of its entry."""
        return {"to": self.to} if self.undone is None else {"to": self.to, "undone": self.undone}


async def undo(history: History, steps: int, head: Head) -> RewindTarget | None:
    """The way back by some steps, or by as many as there are; None if there are none."""
    _check(steps)
    last = await _last_undo(history, head)
    undone = head.revision if last is None else last[1]
    target: RewindTarget | None = None
    async for place in _places(history, head, head.revision):
        target = RewindTarget(place, undone, target.steps + 1 if target else 1)
        if target.steps == steps:
            break
    return target


async def redo(history: History, steps: int, head: Head) -> RewindTarget | None:
    """The way forward by some steps that were undone, or by as many as there are; None if there are none."""
    _check(steps)
    last = await _last_undo(history, head)
    if last is None or last[0] == last[1]:
        return None
    here, undone = last
    places = [undone]
    async for place in _places(history, head, undone):
        places.append(place)
        if place == here:
            break
    steps = min(steps, len(places) - 1)
    return RewindTarget(places[-1 - steps], undone, steps)


def _check(steps: int) -> None:
    if not isinstance(steps, int) or steps < 1:
        message = "should be a whole number of at least 1"
        raise InvalidArguments(f"steps: {message}", {"steps": message})


async def _last_undo(history: History, head: Head) -> tuple[int, int] | None:
    """Where the last undo or redo has led, and the newest revision that was undone, if nothing has changed since."""
    async for _, entry in history.backwards(head, head.revision):
        if entry is None or entry.kind in {*PATCHED, "message"}:
            return None
        if entry.kind == "rewind":
            return (entry.facts["to"], entry.facts["undone"]) if "undone" in entry.facts else None
    return None


async def _places(history: History, head: Head, revision: int) -> AsyncIterator[int]:
    """The revisions before each step that led to a revision, the newest first."""
    begun, is_message = False, False
    async for at, entry in history.backwards(head, revision):
        if entry is not None and entry.kind == "rewind":
            continue
        replied = entry is not None and entry.kind == "call" and entry.name == "reply"
        if begun and not (is_message and replied):  # a reply and the message with it are one step
            yield at
        if entry is None:
            return
        is_message = entry.kind == "message"
        begun = replied or await _begins(history, head, entry)


async def _begins(history: History, head: Head, entry: LogEntry) -> bool:
    """Whether a step begins with an entry."""
    if entry.kind == "message":
        by, moves = entry.facts["by"], entry.facts.get("moves", ())
        return by == "user" or (by == "model" and "new_task" in moves)
    if entry.kind == "call" and entry.call_id is not None and head.phase is not None:
        return not (await history.agent(head, entry.revision - 1)).made(entry.call_id)
    return entry.kind in PATCHED
