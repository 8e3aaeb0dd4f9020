"""What is kept of a thread: the state of its session.

The checkpoint that was put last in a namespace stands in the state whole, so the next one is written as what differs
from it. Of every other checkpoint the state only knows the revision of the session at which that one stood there.
"""

from __future__ import annotations

from stateroom.state import State


class Saved(State):
    """Where a checkpoint is to be found."""

    at: int
    """The revision at which it stood in the state with all writes that had come by then."""
    parent: str | None
    run: str | None


class Current(State):
    """The checkpoint that stands in the state: all but the values of its channels."""

    id: str
    kind: str
    data: bytes
    """The checkpoint and its metadata, as LangGraph's serializer wrote them; `kind` is its name for the form."""


class Write(State):
    """What a task wrote to a channel after a checkpoint."""

    task: str
    index: int
    path: str
    channel: str
    kind: str
    data: bytes


Writes = dict[str, Write]
"""Writes by task and index: of two with the same key there is only one."""

Channels = dict[str, list[bytes]]
"""The values of channels by name, each in parts; see `pieces`."""


class Thread(State):
    """A thread; in each field, by namespace."""

    saved: dict[str, dict[str, Saved]] = {}
    """The checkpoints that there are, by id."""
    current: dict[str, Current] = {}
    """The checkpoint that was put last. A namespace that was not used for long has none here."""
    channels: dict[str, Channels] = {}
    """The values of its channels."""
    writes: dict[str, dict[str, Writes]] = {}
    """By checkpoint: those of the current one, and those that came when it was not, or not yet, current."""

    def find(self, namespace: str, checkpoint: str) -> Saved | None:
        """Where a checkpoint is to be found, if it is there at all."""
        return self.saved.get(namespace, {}).get(checkpoint)

    def is_current(self, namespace: str, checkpoint: str) -> bool:
        """Whether a checkpoint stands here whole."""
        current = self.current.get(namespace)
        return current is not None and current.id == checkpoint

    def writes_of(self, namespace: str, checkpoint: str) -> Writes:
        """The writes here that belong to a checkpoint."""
        return self.writes.get(namespace, {}).get(checkpoint, {})

    def latest(self, namespace: str) -> str | None:
        """The newest checkpoint: ids sort by age."""
        return max(self.saved.get(namespace, ()), default=None)
