"""Edits: a person changes the state of a session, and the log says who and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stateroom.errors import InvalidArguments
from stateroom.session.cached_session import CachedSession, PreparedCommit
from stateroom.session.containment import contained
from stateroom.session.log import checked_name, checked_text, progress_after
from stateroom.session.reader import StateAt
from stateroom.state import DraftContext, EditChange, commit, draft_of, edit, read_changes


class Edit(NamedTuple):
    """Changes to a state by a person."""

    changes: Sequence[EditChange | Mapping[str, Any]]
    """Each is `{"place": ["orders", "a1", "price"], "value": 3}`, or `{"place": ["orders", "a1"], "gone": True}`.

    Values are JSON, parsed by the types that the state declares.
    """
    by: str
    reason: str = ""

    def check(self) -> None:
        """Raise `InvalidArguments` if `by` is missing, and `InvalidState` if the changes are invalid."""
        if not checked_name("by", self.by):
            raise InvalidArguments("by: should say who makes the edit", {"by": "should say who makes the edit"})
        checked_text("reason", self.reason)
        read_changes(self.changes)

    def prepare(self, cached: CachedSession) -> PreparedCommit | None:
        """The commit of this edit on a session whose state is loaded; None if it leaves the state as it is.

        Raises `InvalidState` with the place of what cannot be.
        """
        draft = draft_of(cached.state, DraftContext())
        with contained:
            edit(draft, read_changes(self.changes))
            state, patch = commit(draft)
        if not patch:
            return None
        facts = {"by": self.by, "reason": self.reason}
        return cached.prepare(
            "edit", facts, patch, StateAt(state, progress_after(cached.progress, "edit", None, facts))
        )
