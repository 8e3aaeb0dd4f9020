"""`StateroomSaver`: LangGraph's checkpoints in any store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateroom.adapters.common import LoopWaiter
from stateroom.adapters.langgraph.chunks import joined
from stateroom.adapters.langgraph.thread import (
    Current,
    DropRuns,
    FullCheckpoint,
    KeepLatest,
    Name,
    Put,
    PutWrites,
    Writes,
    ancestors,
    read_checkpoints,
)
from stateroom.adapters.langgraph.threads import GraphThreads
from stateroom.errors import NotFound
from stateroom.session import CachedSession
from stateroom.store import Store, open_store

P = ParamSpec("P")
R = TypeVar("R")

PAGE_SIZE = 32
"""The number of checkpoints that are read together."""


def waiting(
    method: Callable[Concatenate[StateroomSaver, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[StateroomSaver, P], R]:
    """Turn an async method into one for other threads to wait on."""

    @wraps(method)
    def wait(self: StateroomSaver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._waiter.wait(getattr(self, method.__name__)(*args, **kwargs))
        return result

    return wait


class StateroomSaver(BaseCheckpointSaver[int]):
    """Saves LangGraph threads in a store; each is a session, and a step writes only what changed.

    `ttl` is the time to live of a thread after its last change, in seconds (by default threads do not expire), and
    `hot` the number of cached threads. Create and use it on the event loop where the store was opened; the sync methods
    are for other threads, such as those of `graph.invoke`.
    """

    def __init__(
        self,
        store: Store,
        *,
        serde: SerializerProtocol | None = None,
        ttl: float | None = None,
        hot: int = 100,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(serde=serde)
        self._waiter = LoopWaiter("`await graph.ainvoke(...)`, `await saver.aget_tuple(...)` and the like")
        self._threads = GraphThreads(store, ttl, hot, now)

    @classmethod
    @asynccontextmanager
    async def from_url(
        cls, url: str, *, serde: SerializerProtocol | None = None, ttl: float | None = None
    ) -> AsyncIterator[Self]:
        """Open a saver on the store at a URL for the duration of the block."""
        async with open_store(url) as store:
            yield cls(store, serde=serde, ttl=ttl)

    # Saving.

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint after the one in the config, writing only the difference."""
        thread, namespace, parent = _named(config)
        facts = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}
        known = get_checkpoint_metadata(config, metadata)
        run = known.get("run_id")
        rest = {name: part for name, part in checkpoint.items() if name != "channel_values"}
        kind, data = self.serde.dumps_typed([rest, known])
        put = Put(
            namespace,
            parent,
            None if run is None else str(run),
            Current(id=checkpoint["id"], kind=kind, data=bytes(data)),
            checkpoint["channel_values"],
            new_versions,
            self.serde,
        )
        await self._threads.change(thread, {"name": "put", "input": facts}, put)
        return _config(thread, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task after the checkpoint in the config, once."""
        thread, namespace, checkpoint = _named(config)
        if checkpoint is None:
            raise NotFound("the config has no checkpoint_id, which the writes need")
        facts = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint, "task_id": task_id}
        put = PutWrites(namespace, checkpoint, task_id, task_path, writes, self.serde)
        await self._threads.change(thread, {"name": "put_writes", "input": facts}, put)

    # Reading.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint in the config, by default the latest one of the thread, if it exists."""
        thread, namespace, checkpoint = _named(config)
        cached = await self._threads.find(thread)
        checkpoint = checkpoint or _latest(cached, namespace)
        if cached is None or checkpoint is None:
            return None
        checkpoints = await read_checkpoints(cached, [(namespace, checkpoint)])
        return next((self._tuple(thread, name, each) for name, each in checkpoints.items()), None)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of the thread in the config, or of all threads, newest first."""
        names = await self._names(config, get_checkpoint_id(before) if before else None)
        left = len(names) if limit is None else limit
        size = PAGE_SIZE if filter else min(PAGE_SIZE, max(left, 1))
        for start in range(0, len(names), size):
            async for thread, name, full in self._page(names[start : start + size]):
                if left <= 0:
                    return
                if not filter or self._fits(full, filter):
                    left -= 1
                    yield self._tuple(thread, name, full)

    async def _names(self, config: RunnableConfig | None, before: str | None) -> Sequence[tuple[str, str, str]]:
        """The checkpoints of a list, in order: id, namespace and thread."""
        wanted: Mapping[str, Any] = (config or {}).get("configurable", {})
        threads = [str(wanted["thread_id"])] if config else [thread async for thread in self._threads.every()]
        names = []
        for thread in threads:
            cached = await self._threads.find(thread)
            for namespace, saved in cached.state.saved.items() if cached else ():
                if wanted.get("checkpoint_ns") in (None, namespace):
                    names += [(id, namespace, thread) for id in saved if before is None or id < before]
        only = wanted.get("checkpoint_id")
        return sorted((name for name in names if only in (None, name[0])), reverse=True)

    async def _page(self, names: Sequence[tuple[str, str, str]]) -> AsyncIterator[tuple[str, Name, FullCheckpoint]]:
        checkpoints: dict[tuple[str, Name], FullCheckpoint] = {}
        for thread in {thread for _, _, thread in names}:
            cached = await self._threads.find(thread)
            if cached is not None:
                wanted = [(namespace, id) for id, namespace, home in names if home == thread]
                checkpoints |= {(thread, name): each for name, each in (await read_checkpoints(cached, wanted)).items()}
        for id, namespace, thread in names:
            name = namespace, id
            if (thread, name) in checkpoints:
                yield thread, name, checkpoints[thread, name]

    def _fits(self, full: FullCheckpoint, filter: dict[str, Any]) -> bool:
        _, metadata = self.serde.loads_typed((full.checkpoint.kind, full.checkpoint.data))
        return all(metadata.get(key) == value for key, value in filter.items())

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes to channels before a checkpoint, back to the last saved value of each."""
        thread, namespace, checkpoint = _named(config)
        histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        cached = await self._threads.find(thread)
        checkpoint = checkpoint or _latest(cached, namespace)
        if cached is None or checkpoint is None:
            return histories
        line = [(namespace, id) for id in ancestors(cached.state, namespace, checkpoint)]
        open_ones = dict(histories)
        for start in range(0, len(line), PAGE_SIZE):
            page = await read_checkpoints(cached, line[start : start + PAGE_SIZE]) if open_ones else {}
            for ancestor in [page[name] for name in line[start : start + PAGE_SIZE] if name in page]:
                self._add_ancestor(open_ones, ancestor)
        for history in histories.values():
            history["writes"].reverse()
        return histories

    def _add_ancestor(self, histories: dict[str, DeltaChannelHistory], ancestor: FullCheckpoint) -> None:
        """Add the writes of an ancestor, newest first; channels whose value it has are complete."""
        for write in reversed([*self._writes(ancestor.writes)]):
            if (history := histories.get(write[1])) is not None:
                history["writes"].append(write)
        for channel in histories.keys() & ancestor.channels.keys():
            histories.pop(channel)["seed"] = self.serde.loads_typed(joined(ancestor.channels[channel]))

    def _tuple(self, thread: str, name: Name, full: FullCheckpoint) -> CheckpointTuple:
        namespace, id = name
        checkpoint, metadata = self.serde.loads_typed((full.checkpoint.kind, full.checkpoint.data))
        values = {channel: self.serde.loads_typed(joined(parts)) for channel, parts in full.channels.items()}
        checkpoint["channel_values"] = values
        return CheckpointTuple(
            _config(thread, namespace, id),
            checkpoint,
            metadata,
            _config(thread, namespace, full.parent) if full.parent else None,
            [*self._writes(full.writes)],
        )

    def _writes(self, writes: Writes) -> Iterator[PendingWrite]:
        for write in sorted(writes.values(), key=lambda write: writes_sort_key(write.path, write.task, write.index)):
            yield write.task, write.channel, self.serde.loads_typed((write.kind, write.data))

    # Maintenance.

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread. Its copies keep what they share with it."""
        await self._threads.delete(str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs in all threads. This reads every thread."""
        drop = DropRuns(frozenset(map(str, run_ids)))
        async for thread in self._threads.every():
            cached = await self._threads.find(thread)
            if cached is not None and drop.concerns(cached.state):
                await self._change(thread, "delete_for_runs", drop)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread in O(1); both threads share their history."""
        await self._threads.copy(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace of the threads, or delete all with `delete`."""
        if strategy not in ("keep_latest", "delete"):
            raise NotFound(f"unknown strategy {strategy!r}; use keep_latest or delete")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                await self._threads.delete(thread)
            elif await self._threads.find(thread) is not None:
                await self._change(thread, "prune", KeepLatest(self.serde))

    async def _change(self, thread: str, name: str, edit: DropRuns | KeepLatest) -> None:
        cached = await self._threads.change(thread, {"name": name, "input": {}}, edit, with_snapshot=True)
        await self._threads.prune(cached)

    # Sync methods, which wait for the async ones from other threads.

    get_tuple = waiting(aget_tuple)
    put = waiting(aput)
    put_writes = waiting(aput_writes)
    delete_thread = waiting(adelete_thread)
    delete_for_runs = waiting(adelete_for_runs)
    copy_thread = waiting(acopy_thread)
    prune = waiting(aprune)
    get_delta_channel_history = waiting(aget_delta_channel_history)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        checkpoints = aiter(self.alist(config, filter=filter, before=before, limit=limit))

        async def following() -> CheckpointTuple | None:
            return await anext(checkpoints, None)

        while (checkpoint := self._waiter.wait(following())) is not None:
            yield checkpoint


def _named(config: RunnableConfig) -> tuple[str, str, str | None]:
    """The thread, the namespace and the checkpoint in a config."""
    named = config["configurable"]
    return str(named["thread_id"]), named.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _latest(cached: CachedSession | None, namespace: str) -> str | None:
    return None if cached is None else cached.state.latest(namespace)


def _config(thread: str, namespace: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}
