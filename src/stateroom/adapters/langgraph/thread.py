"""The state of a thread's session, its edits, and its checkpoints at earlier revisions.

The state contains the newest checkpoint of a namespace in full, so the next one is written as a difference. For every
other checkpoint, it contains only the revision of the session at which that was the newest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateroom.adapters.langgraph.chunks import changes, cut
from stateroom.errors import UnknownRevision
from stateroom.session import CachedSession, History
from stateroom.state import Patch, State, patched

MAX_OPEN_NAMESPACES = 16
"""The number of namespaces, besides the root, whose current checkpoint stays in the state."""

MAX_REVISION_GAP = 100
"""The largest distance of revisions that are read in one pass over the log."""

Name = tuple[str, str]
"""The namespace and the id of a checkpoint."""


class SavedCheckpoint(State):
    """The place of a checkpoint in the log."""

    at: int
    """The last revision at which the state contains it in full."""
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
    """The newest checkpoints, except of namespaces that have not been used for long."""
    channels: dict[str, Channels] = {}
    """The values of the channels of the newest checkpoint."""
    writes: dict[str, dict[str, Writes]] = {}
    """Writes by checkpoint, for the current one and for those that are not current, or not yet."""

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
    """A new state of a thread and its patch; only changed containers are copied.

    A draft does the same and also validates values. Here all values are our own, and without validation a step of a
    graph takes half the time.
    """

    def __init__(self, thread: GraphThread) -> None:
        self.thread = thread.model_copy()
        self.patch: Patch = []
        self._ours: dict[int, Any] = {}
        """The copied containers by id; keeping them prevents the reuse of ids."""

    def set(self, *path: str, value: Any) -> None:
        """Set the value of a key, creating missing containers on the way."""
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
        """Delete the entry of a checkpoint in a field, if any."""
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
    """Read checkpoints of a thread together, without those that do not exist or were pruned."""
    now: GraphThread = cached.state
    before: dict[Name, SavedCheckpoint] = {}
    checkpoints: dict[Name, FullCheckpoint] = {}
    for name in names:
        saved = now.find(*name)
        if saved is None:
            continue
        if now.is_current(*name):
            checkpoints[name] = _full(now, name, saved, now)
        else:
            before[name] = saved
    states = await _states(cached, sorted({saved.at for saved in before.values()}))
    for name, saved in before.items():
        if (then := states.get(saved.at)) is not None:
            checkpoints[name] = _full(then, name, saved, now)
    return checkpoints


def _full(then: GraphThread, name: Name, saved: SavedCheckpoint, now: GraphThread) -> FullCheckpoint:
    namespace, _ = name
    writes = {**then.writes_of(*name), **now.writes_of(*name)}
    return FullCheckpoint(then.current[namespace], saved.parent, then.channels[namespace], writes)


async def writes_of(cached: CachedSession, namespace: str, checkpoint: str) -> Writes:
    """All writes after a checkpoint, which need not exist yet."""
    name = (namespace, checkpoint)
    checkpoints = await read_checkpoints(cached, [name])
    return checkpoints[name].writes if name in checkpoints else cached.state.writes_of(*name)


def ancestors(thread: GraphThread, namespace: str, checkpoint: str) -> Iterator[str]:
    """The parent of a checkpoint, its parent, and so on."""
    seen = {checkpoint}
    saved = thread.find(namespace, checkpoint)
    while saved is not None and saved.parent is not None and saved.parent not in seen:
        seen.add(saved.parent)
        yield saved.parent
        saved = thread.find(namespace, saved.parent)


async def _states(cached: CachedSession, revisions: list[int]) -> dict[int, GraphThread]:
    states: dict[int, GraphThread] = {}
    for run in _runs(revisions):
        try:
            state: GraphThread = (await cached.at(run[0])).state
        except UnknownRevision:
            states |= await _states(cached, run[1:])
            continue
        states[run[0]] = state
        if len(run) == 1:
            continue
        async for entry in History(cached.store).entries(cached.head.id, after=run[0], until=run[-1]):
            state = patched(state, entry.patch)
            if entry.revision in run:
                states[entry.revision] = state
    return states


def _runs(revisions: list[int]) -> Iterator[list[int]]:
    """Groups of neighbouring revisions, in order."""
    run = revisions[:1]
    for last, revision in pairwise(revisions):
        if revision - last > MAX_REVISION_GAP:
            yield run
            run = []
        run.append(revision)
    if run:
        yield run


# Edits, one class each.


@dataclass(slots=True)
class Put:
    """Put a checkpoint, which becomes the current one of its namespace."""

    namespace: str
    parent: str | None
    run: str | None
    checkpoint: Current
    values: Mapping[str, Any]
    changed: Collection[str]
    """The channels that differ from the parent's."""
    serde: SerializerProtocol

    async def __call__(self, cached: CachedSession, change: ThreadChange) -> None:
        namespace, id = self.namespace, self.checkpoint.id
        thread = change.thread
        old = thread.current.get(namespace)
        is_known = thread.find(namespace, id) is not None and not thread.is_current(namespace, id)
        if is_known and (writes := await writes_of(cached, namespace, id)):
            change.set("writes", namespace, id, value=writes)  # a repeated put keeps the writes of the checkpoint
        if old is None:
            change.set("channels", namespace, value={name: self._cut(value) for name, value in self.values.items()})
            _close_oldest(change)
        else:
            self._follow(change, known=old.id == self.parent)
            if old.id != id:
                change.discard("writes", namespace, old.id)
        change.set("current", namespace, value=self.checkpoint)
        saved = SavedCheckpoint(at=cached.head.revision + 1, parent=self.parent, run=self.run)
        change.set("saved", namespace, id, value=saved)

    def _follow(self, change: ThreadChange, *, known: bool) -> None:
        """Write the differences from the previous values; if the parent is `known`, only of changed channels."""
        old = change.thread.channels[self.namespace]
        for name in old.keys() - self.values.keys():
            change.delete("channels", self.namespace, name)
        for name, value in self.values.items():
            was = old.get(name)
            if was is None:
                change.set("channels", self.namespace, name, value=self._cut(value))
            elif not known or name in self.changed:
                kind, data = self.serde.dumps_typed(value)
                for start, stop, chunks in changes(was, kind, bytes(data)):
                    change.splice("channels", self.namespace, name, start=start, stop=stop, values=chunks)

    def _cut(self, value: Any) -> list[bytes]:
        kind, data = self.serde.dumps_typed(value)
        return cut(kind, bytes(data))


@dataclass(slots=True)
class PutWrites:
    """Put the writes of a task; its earlier writes stay, except errors, interrupts and the like."""

    namespace: str
    id: str
    task: str
    path: str
    writes: Sequence[tuple[str, Any]]
    serde: SerializerProtocol

    async def __call__(self, cached: CachedSession, change: ThreadChange) -> None:
        known = await writes_of(cached, self.namespace, self.id)
        new: Writes = {}
        for position, (channel, value) in enumerate(self.writes):
            index = WRITES_IDX_MAP.get(channel, position)
            key = f"{self.task}/{index}"
            if index < 0 or key not in known:
                kind, data = self.serde.dumps_typed(value)
                new[key] = Write(
                    task=self.task, index=index, path=self.path, channel=channel, kind=kind, data=bytes(data)
                )
        if not new:
            return
        thread = change.thread
        if not thread.writes_of(self.namespace, self.id):
            change.set("writes", self.namespace, self.id, value=new)
        else:
            for key, write in new.items():
                change.set("writes", self.namespace, self.id, key, value=write)
        if thread.is_current(self.namespace, self.id):
            _move(change, self.namespace, self.id, cached.head.revision + 1)


@dataclass(slots=True)
class DropRuns:
    """Drop the checkpoints of runs."""

    runs: frozenset[str]

    async def __call__(self, _: CachedSession, change: ThreadChange) -> None:
        for namespace, checkpoints in change.thread.saved.copy().items():
            _drop(change, namespace, [id for id, saved in checkpoints.items() if saved.run in self.runs])

    def concerns(self, thread: GraphThread) -> bool:
        """Whether a thread has such checkpoints."""
        return any(saved.run in self.runs for some in thread.saved.values() for saved in some.values())


@dataclass(slots=True)
class KeepLatest:
    """Drop all checkpoints of each namespace except the latest one and those that it needs.

    The latest ones become current, so they do not depend on an earlier revision.
    """

    serde: SerializerProtocol

    async def __call__(self, cached: CachedSession, change: ThreadChange) -> None:
        thread = change.thread
        latest = {(namespace, max(checkpoints)) for namespace, checkpoints in thread.saved.items()}
        for (namespace, id), full in (await read_checkpoints(cached, latest)).items():
            kept = {id, *await self._sources(cached, namespace, full)}
            known = thread.saved[namespace].keys() | thread.writes.get(namespace, {}).keys()
            is_current = thread.is_current(namespace, id)
            _drop(change, namespace, known - kept)
            if not is_current:
                change.set("current", namespace, value=full.checkpoint)
                change.set("channels", namespace, value=full.channels)
                if full.writes:
                    change.set("writes", namespace, id, value=full.writes)
            _move(change, namespace, id, cached.head.revision + 1)

    async def _sources(self, cached: CachedSession, namespace: str, latest: FullCheckpoint) -> list[str]:
        """The ancestors with the values of channels that a checkpoint lacks."""
        checkpoint, metadata = self.serde.loads_typed((latest.checkpoint.kind, latest.checkpoint.data))
        counted = metadata.get("counters_since_delta_snapshot") or {}
        missing = counted.keys() & checkpoint["channel_versions"].keys() - latest.channels.keys()
        sources: list[str] = []
        for id in ancestors(cached.state, namespace, latest.checkpoint.id):
            if not missing:
                break
            sources.append(id)
            for ancestor in (await read_checkpoints(cached, [(namespace, id)])).values():
                missing -= ancestor.channels.keys()
        return sources


def _move(change: ThreadChange, namespace: str, id: str, at: int) -> None:
    """Change the revision of a checkpoint."""
    saved = change.thread.saved[namespace][id]
    change.set("saved", namespace, id, value=SavedCheckpoint(at=at, parent=saved.parent, run=saved.run))


def _drop(change: ThreadChange, namespace: str, ids: Collection[str]) -> None:
    for id in ids:
        change.discard("writes", namespace, id)
        if change.thread.is_current(namespace, id):
            _close(change, namespace)
        change.discard("saved", namespace, id)


def _close_oldest(change: ThreadChange) -> None:
    """Close the least recently used namespace if there are too many; its checkpoints stay in the log."""
    thread = change.thread
    open_ones = [name for name in thread.current if name]
    if len(open_ones) >= MAX_OPEN_NAMESPACES:
        oldest = min(open_ones, key=lambda name: thread.saved[name][thread.current[name].id].at)
        change.discard("writes", oldest, thread.current[oldest].id)
        _close(change, oldest)


def _close(change: ThreadChange, namespace: str) -> None:
    change.delete("current", namespace)
    change.delete("channels", namespace)
