"""A session's log for people: what happened, and what each step changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic_core import to_jsonable_python

from stateroom.errors import UnknownRevision
from stateroom.session.history import History
from stateroom.session.log import LogEntry
from stateroom.state import describe, differences
from stateroom.store import Head, Store


class Transcript:
    """A session's log, read onwards from a revision, with what each entry changed."""

    def __init__(self, store: Store, session: str, after: int = 0) -> None:
        self.session = session
        self.revision = after
        """The revision of the entry that was read last."""
        self._history = History(store)
        self._state: Any = None
        """The state at that revision, as far as it is known."""

    async def read(self, until: int | None = None) -> AsyncIterator[tuple[LogEntry, list[str]]]:
        """The entries up to a revision, by default all that there are, each with its changes in words."""
        if until is not None and until <= self.revision:
            return
        async for entry in self._history.entries(self.session, after=self.revision, until=until):
            changes = await self._changes(entry)
            self.revision = entry.revision
            yield entry, changes
        if until is not None and self.revision < until:  # what comes last was pruned
            self.revision, self._state = until, None

    async def _changes(self, entry: LogEntry) -> list[str]:
        if entry.kind == "seed":
            self._state = await self._state_at(entry.revision)
            return []
        if self._state is None or entry.revision > self.revision + 1:  # what lies between was pruned
            self._state = await self._state_at(entry.revision - 1)
        if entry.kind == "rewind" or "schema" in entry.facts:
            old, self._state = self._state, await self._state_at(entry.revision)
            return [] if old is None or self._state is None else differences(old, self._state)
        return describe(self._state, entry.patch) if entry.kind == "call" and self._state is not None else []

    async def _state_at(self, revision: int) -> Any:
        """The state at a revision; None if that was pruned, as it may be of the first entry, which stays."""
        with suppress(UnknownRevision):
            return (await self._history.document(self.session, revision)).state
        return None


def entry_data(entry: LogEntry, changes: list[str]) -> dict[str, Any]:
    """An entry as JSON data."""
    call_id = (entry.call_id or "").partition("\n")[0] or None  # what follows is a suffix of the session's own
    said = {"revision": entry.revision, "kind": entry.kind, "at": entry.at, "call_id": call_id}
    facts = dict(entry.facts)
    if (schema := facts.pop("schema", None)) and entry.kind != "seed":
        facts["migrated_to"] = schema[0]
    if events := facts.get("events"):  # whose fields may be of types that JSON lacks
        facts["events"] = to_jsonable_python(events, bytes_mode="base64")
    return {**said, **facts, "changes": changes}


def head_data(head: Head, now: float) -> dict[str, Any]:
    """What is known of a session without reading its log, as JSON data."""
    return {
        "id": head.id,
        "environment": head.environment,
        "owner": head.owner,
        "status": head.status(now),
        "revision": head.revision,
        "created": head.created,
        "expires": head.expires,
        "parent": {"session": head.parent, "revision": head.parent_revision} if head.parent is not None else None,
    }
