"""What was said in a session, as a store tells it to whoever has not the author's classes."""

from __future__ import annotations

from typing import Any

import msgspec

from stateroom.model import Item, input_items
from stateroom.session import History, LogEntry
from stateroom.store import Store


class Utterance(msgspec.Struct, frozen=True):
    """What was said at once."""

    revision: int
    at: float
    by: str
    """`task`, `user`, `model`, or whoever else: see `Said`."""
    items: list[Item]
    reason: str | None = None
    """Why, if it ended something."""


async def talk(store: Store, session: str, after: int = 0) -> list[Utterance]:
    """All that was said on the way to where a session stands, after a revision; it begins with the task's input.

    What a rewind has undone is not among it. Raises `UnknownRevision` if some of it was pruned.
    """
    head = await store.head(session)
    line = await History(store).line(session, head.revision, after=after)
    found = (_utterance(entry) for entry in line if entry.kind in ("seed", "message"))
    return [each for each in found if each.items or each.reason]


def _utterance(entry: LogEntry) -> Utterance:
    if entry.kind == "seed":
        return Utterance(entry.revision, entry.at, "task", asked_in(entry.input))
    facts = entry.facts
    return Utterance(entry.revision, entry.at, facts["by"], facts["items"], facts.get("reason"))


def asked_in(row: Any) -> list[Item]:
    """The items with which a task's row begins a conversation; whatever else it has there is none."""
    request = row.get("responses_create_params") if isinstance(row, dict) else None
    given = request.get("input") if isinstance(request, dict) else None
    return [item for item in input_items(given) if isinstance(item, dict)] if isinstance(given, str | list) else []
