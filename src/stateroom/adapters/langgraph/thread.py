"""The state of a thread's session, its changes, and its checkpoints at earlier revisions.

The newest checkpoint of a namespace is in the state as a whole, so the next one is written as a difference. For every
other checkpoint the state has only the revision of the session at which it was the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from stateroom.errors import UnknownRevision
from stateroom.session import CachedSession, History
from stateroom.state import Patch, State, patched

NEAR = 100
"""Revisions at most this far apart are read in one pass over the log."""

Name = tuple[str, str]
"""The namespace and the id of a checkpoint."""


class SavedCheckpoint(State):
    """The place of a checkpoint in the log."""

    at: int
    """The last revision at which the state has all of it."""
    parent: str | None
    run: str | None


class Current(State):
    """A checkpoint in the state, without the values of its channels."""

    id: str
    kind: str
    data: bytes
    """The checkpoint and its metadata, in a format of LangGraph's serializer; `kind` names it."""


class Write(State):
    """A write of a task to a channel after a checkpoint."""

    task: str
    index: int
    path: str
    channel: str
    kind: str
    data: bytes


Writes = dict[str, Write]
"""Writes by task and index."""

Channels = dict[str, list[bytes]]
"""The values of channels by name, each in chunks; see `chunks`."""


class GraphThread(State):
    """The state of a thread; each field is by namespace."""

    saved: dict[str, dict[str, SavedCheckpoint]] = {}
    """All checkpoints, by id."""
    current: dict[str, Current] = {}
    """The newest checkpoint, except of namespaces that were not used for long."""
    channels: dict[str, Channels] = {}
    """The values of the channels of the newest checkpoint."""
    writes: dict[str, dict[str, Writes]] = {}
    """By checkpoint: writes of the current one, and writes to one that was not, or not yet, current."""

    def find(self, namespace: str, checkpoint: str) -> SavedCheckpoint | None:
        """The place of a checkpoint, if it exists."""
        return self.saved.get(namespace, {}).get(checkpoint)

    def is_current(self, namespace: str, checkpoint: str) -> bool:
        """Whether a checkpoint is the current one of its namespace."""
        current = self.current.get(namespace)
        return current is not None and current.id == checkpoint

    def writes_of(self, namespace: str, checkpoint: str) -> Writes:
        """The writes in this state after a checkpoint."""
        return self.writes.get(namespace, {}).get(checkpoint, {})

    def latest(self, namespace: str) -> str | None:
        """The newest checkpoint; ids sort by age."""
        return max(self.saved.get(namespace, ()), default=None)


class ThreadChange:
    """A new state of a thread, and its patch; it copies only the containers that it changes.

    A draft does the same, and also checks an author's values. Here all values are our own, and without the checks a
    step of a graph takes half the time.
    """

    def __init__(self, thread: GraphThread) -> None:
        self.thread = thread.model_copy()
        self.patch: Patch = []
        self._ours: dict[int, Any] = {}
        """The copied containers by id; keeping them makes sure that no id is used again."""

    def set(self, *path: str, value: Any) -> None:
        """Set the value of a key; containers that are missing on the way to it are made."""
        container: Any = self.thread.__dict__
        for depth, step in enumerate(path[:-1], 1):
            if step not in container:
                for key in reversed(path[depth:]):
                    value = {key: value}
                path = path[:depth]
                break
            container = container[step]
        self._container(path[:-1])[path[-1]] = value
        self.patch.append(("set", path, value))

    def delete(self, *path: str) -> None:
        """Delete a key."""
        del self._container(path[:-1])[path[-1]]
        self.patch.append(("del", path))

    def discard(self, field: str, namespace: str, checkpoint: str) -> None:
        """Delete what a field has of a checkpoint, if it has something."""
        checkpoints = getattr(self.thread, field).get(namespace, {})
        if checkpoint in checkpoints:
            self.delete(field, namespace, *([checkpoint] if len(checkpoints) > 1 else []))

    def splice(self, *path: str, start: int, stop: int, values: list[Any]) -> None:
        """Replace items of a list."""
        self._container(path)[start:stop] = values
        self.patch.append(("splice", path, start, stop, values))

    def _container(self, path: tuple[str, ...]) -> Any:
        """The container at a path, as a copy."""
        container: Any = self.thread.__dict__
        for step in path:
            inner = container[step]
            if id(inner) not in self._ours:
                inner = container[step] = inner.copy()
                self._ours[id(inner)] = inner
            container = inner
        return container


class FullCheckpoint(NamedTuple):
    """A checkpoint with its channels and writes."""

    checkpoint: Current
    parent: str | None
    channels: Channels
    writes: Writes


async def read_checkpoints(cached: CachedSession, names: Iterable[Name]) -> dict[Name, FullCheckpoint]:
    """Read checkpoints of a thread together; those that do not exist, or were pruned, are left out."""
    now: GraphThread = cached.state
    before: dict[Name, SavedCheckpoint] = {}
    found: dict[Name, FullCheckpoint] = {}
    for name in names:
        saved = now.find(*name)
        if saved is None:
            continue
        if now.is_current(*name):
            found[name] = _full(now, name, saved, now)
        else:
            before[name] = saved
    states = await _states(cached, sorted({saved.at for saved in before.values()}))
    for name, saved in before.items():
        if (then := states.get(saved.at)) is not None:
            found[name] = _full(then, name, saved, now)
    return found


def _full(then: GraphThread, name: Name, saved: SavedCheckpoint, now: GraphThread) -> FullCheckpoint:
    namespace, _ = name
    writes = {**then.writes_of(*name), **now.writes_of(*name)}
    return FullCheckpoint(then.current[namespace], saved.parent, then.channels[namespace], writes)


async def writes_of(cached: CachedSession, namespace: str, checkpoint: str) -> Writes:
    """All writes after a checkpoint, which need not exist yet."""
    name = (namespace, checkpoint)
    found = await read_checkpoints(cached, [name])
    return found[name].writes if name in found else cached.state.writes_of(*name)


def ancestors(thread: GraphThread, namespace: str, checkpoint: str) -> Iterator[str]:
    """The parent of a checkpoint, its parent, and so on."""
    seen = {checkpoint}
    saved = thread.find(namespace, checkpoint)
    while saved is not None and saved.parent is not None and saved.parent not in seen:
        seen.add(saved.parent)
        yield saved.parent
        saved = thread.find(namespace, saved.parent)


async def _states(cached: CachedSession, revisions: list[int]) -> dict[int, GraphThread]:
    found: dict[int, GraphThread] = {}
    for run in _runs(revisions):
        try:
            state: GraphThread = (await cached.at(run[0])).state
        except UnknownRevision:
            found |= await _states(cached, run[1:])
            continue
        found[run[0]] = state
        if len(run) == 1:
            continue
        async for entry in History(cached.store).entries(cached.head.id, after=run[0], until=run[-1]):
            state = patched(state, entry.patch)
            if entry.revision in run:
                found[entry.revision] = state
    return found


def _runs(revisions: list[int]) -> Iterator[list[int]]:
    """Groups of revisions that are near to each other, in order."""
    run = revisions[:1]
    for last, revision in pairwise(revisions):
        if revision - last > NEAR:
            yield run
            run = []
        run.append(revision)
    if run:
        yield run
