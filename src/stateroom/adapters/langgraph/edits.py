"""The edits of a thread, one class each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateroom.adapters.langgraph.chunks import changes, cut
from stateroom.adapters.langgraph.thread import (
    Current,
    FullCheckpoint,
    GraphThread,
    SavedCheckpoint,
    ThreadChange,
    Write,
    Writes,
    ancestors,
    read_checkpoints,
    writes_of,
)
from stateroom.session import CachedSession

OPEN = 16
"""Namespaces below the root whose current checkpoint stays in the state; that of the root always does."""


@dataclass(slots=True)
class Put:
    """Put a checkpoint: it becomes the current one of its namespace."""

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
            change.set("writes", namespace, id, value=writes)  # a checkpoint that is put again keeps its writes
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
        """Write the differences of the values from those before; if the parent is `known`, only of changed channels."""
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
    """Drop the checkpoints of some runs."""

    runs: frozenset[str]

    async def __call__(self, _: CachedSession, change: ThreadChange) -> None:
        for namespace, checkpoints in change.thread.saved.copy().items():
            _drop(change, namespace, [id for id, saved in checkpoints.items() if saved.run in self.runs])

    def concerns(self, thread: GraphThread) -> bool:
        """Whether a thread has such checkpoints."""
        return any(saved.run in self.runs for some in thread.saved.values() for saved in some.values())


@dataclass(slots=True)
class KeepLatest:
    """Drop all checkpoints of each namespace except the latest one, and those that it needs.

    The latest ones become current, so they need no earlier revision.
    """

    serde: SerializerProtocol

    async def __call__(self, cached: CachedSession, change: ThreadChange) -> None:
        thread = change.thread
        latest = {(namespace, max(checkpoints)) for namespace, checkpoints in thread.saved.items()}
        for (namespace, id), found in (await read_checkpoints(cached, latest)).items():
            kept = {id, *await self._sources(cached, namespace, found)}
            known = thread.saved[namespace].keys() | thread.writes.get(namespace, {}).keys()
            is_current = thread.is_current(namespace, id)
            _drop(change, namespace, known - kept)
            if not is_current:
                change.set("current", namespace, value=found.checkpoint)
                change.set("channels", namespace, value=found.channels)
                if found.writes:
                    change.set("writes", namespace, id, value=found.writes)
            _move(change, namespace, id, cached.head.revision + 1)

    async def _sources(self, cached: CachedSession, namespace: str, latest: FullCheckpoint) -> list[str]:
        """The ancestors that have the values of the channels that a checkpoint lacks."""
        checkpoint, metadata = self.serde.loads_typed((latest.checkpoint.kind, latest.checkpoint.data))
        counted = metadata.get("counters_since_delta_snapshot") or {}
        missing = counted.keys() & checkpoint["channel_versions"].keys() - latest.channels.keys()
        sources: list[str] = []
        for id in ancestors(cached.state, namespace, latest.checkpoint.id):
            if not missing:
                break
            sources.append(id)
            for found in (await read_checkpoints(cached, [(namespace, id)])).values():
                missing -= found.channels.keys()
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
    """Close the least recently used namespace, if there are many; its checkpoints stay in the log."""
    thread = change.thread
    open_ones = [name for name in thread.current if name]
    if len(open_ones) >= OPEN:
        oldest = min(open_ones, key=lambda name: thread.saved[name][thread.current[name].id].at)
        change.discard("writes", oldest, thread.current[oldest].id)
        _close(change, oldest)


def _close(change: ThreadChange, namespace: str) -> None:
    change.delete("current", namespace)
    change.delete("channels", namespace)
