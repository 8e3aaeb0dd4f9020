"""`StateroomSaver`: LangGraph's checkpoints in any store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
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

from stateroom.adapters.langgraph.blocking import BlockingSaver
from stateroom.adapters.langgraph.edits import DropRuns, KeepLatest, Put, PutWrites
from stateroom.adapters.langgraph.past import Name, Whole, ancestors, whole
from stateroom.adapters.langgraph.pieces import joined
from stateroom.adapters.langgraph.thread import Current, Writes
from stateroom.adapters.langgraph.threads import Threads
from stateroom.errors import NotFound
from stateroom.session.cached_session import CachedSession
from stateroom.store import Store, open_store

PAGE = 32
"""How many checkpoints are read together."""


class StateroomSaver(BlockingSaver):
    """Saves the threads of LangGraph's graphs in a store; each is a session, whose state is what changed step by step.

    `ttl` is how many seconds a thread lives after the last change, by default for ever, and `hot` how many threads
    this process keeps at hand. To be made, and used, on the loop on which the store was opened; the methods that are
    not async are for other threads, such as those in which `graph.invoke` runs.
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
        self._threads = Threads(store, ttl, hot, now)

    @classmethod
    @asynccontextmanager
    async def from_url(
        cls, url: str, *, serde: SerializerProtocol | None = None, ttl: float | None = None
    ) -> AsyncIterator[Self]:
        """A saver on the store that a URL names, for as long as the block runs."""
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
        """Save a checkpoint that follows the one in the config; only what differs is written."""
        thread, namespace, parent = _place(config)
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
        """Save what a task wrote after the checkpoint in the config, unless that was done before."""
        thread, namespace, checkpoint = _place(config)
        if checkpoint is None:
            raise NotFound("the config names no checkpoint_id, so it is not known what the writes belong to")
        facts = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint, "task_id": task_id}
        put = PutWrites(namespace, checkpoint, task_id, task_path, writes, self.serde)
        await self._threads.change(thread, {"name": "put_writes", "input": facts}, put)

    # Reading.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint in the config, by default the latest one of the thread; None if it is not there."""
        thread, namespace, checkpoint = _place(config)
        cached = await self._threads.find(thread)
        checkpoint = checkpoint or _latest(cached, namespace)
        if cached is None or checkpoint is None:
            return None
        found = await whole(cached, [(namespace, checkpoint)])
        return next((self._tuple(thread, name, each) for name, each in found.items()), None)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the newest first: of the thread in the config, or of all."""
        names = await self._names(config, get_checkpoint_id(before) if before else None)
        left = len(names) if limit is None else limit
        size = PAGE if filter else min(PAGE, max(left, 1))
        for start in range(0, len(names), size):
            async for thread, name, found in self._page(names[start : start + size]):
                if left <= 0:
                    return
                if not filter or self._fits(found, filter):
                    left -= 1
                    yield self._tuple(thread, name, found)

    async def _names(self, config: RunnableConfig | None, before: str | None) -> Sequence[tuple[str, str, str]]:
        """What is listed, in order: the id of each checkpoint, its namespace and thread."""
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

    async def _page(self, names: Sequence[tuple[str, str, str]]) -> AsyncIterator[tuple[str, Name, Whole]]:
        found: dict[tuple[str, Name], Whole] = {}
        for thread in {thread for _, _, thread in names}:
            cached = await self._threads.find(thread)
            if cached is not None:
                wanted = [(namespace, id) for id, namespace, home in names if home == thread]
                found |= {(thread, name): each for name, each in (await whole(cached, wanted)).items()}
        for id, namespace, thread in names:
            name = namespace, id
            if (thread, name) in found:
                yield thread, name, found[thread, name]

    def _fits(self, found: Whole, filter: dict[str, Any]) -> bool:
        _, metadata = self.serde.loads_typed((found.checkpoint.kind, found.checkpoint.data))
        return all(metadata.get(key) == value for key, value in filter.items())

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What was written to channels before a checkpoint, back to where each was last saved whole."""
        thread, namespace, checkpoint = _place(config)
        histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        cached = await self._threads.find(thread)
        checkpoint = checkpoint or _latest(cached, namespace)
        if cached is None or checkpoint is None:
            return histories
        line = [(namespace, id) for id in ancestors(cached.state, namespace, checkpoint)]
        open_ones = dict(histories)
        for start in range(0, len(line), PAGE):
            page = await whole(cached, line[start : start + PAGE]) if open_ones else {}
            for found in [page[name] for name in line[start : start + PAGE] if name in page]:
                self._go_back(open_ones, found)
        for history in histories.values():
            history["writes"].reverse()
        return histories

    def _go_back(self, histories: dict[str, DeltaChannelHistory], ancestor: Whole) -> None:
        """Add what an ancestor says, the newest first; a channel of which it has the value has no more to come."""
        for write in reversed([*self._writes(ancestor.writes)]):
            if (history := histories.get(write[1])) is not None:
                history["writes"].append(write)
        for channel in histories.keys() & ancestor.channels.keys():
            histories.pop(channel)["seed"] = self.serde.loads_typed(joined(ancestor.channels[channel]))

    def _tuple(self, thread: str, name: Name, found: Whole) -> CheckpointTuple:
        namespace, id = name
        checkpoint, metadata = self.serde.loads_typed((found.checkpoint.kind, found.checkpoint.data))
        values = {channel: self.serde.loads_typed(joined(parts)) for channel, parts in found.channels.items()}
        checkpoint["channel_values"] = values
        return CheckpointTuple(
            _config(thread, namespace, id),
            checkpoint,
            metadata,
            _config(thread, namespace, found.parent) if found.parent else None,
            [*self._writes(found.writes)],
        )

    def _writes(self, writes: Writes) -> Iterator[PendingWrite]:
        for write in sorted(writes.values(), key=lambda write: writes_sort_key(write.path, write.task, write.index)):
            yield write.task, write.channel, self.serde.loads_typed((write.kind, write.data))

    # Care.

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread. Copies of it keep what they share with it."""
        await self._threads.delete(str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that some runs have made, in all threads. Every thread is looked at, one by one."""
        drop = DropRuns(frozenset(map(str, run_ids)))
        async for thread in self._threads.every():
            cached = await self._threads.find(thread)
            if cached is not None and drop.concerns(cached.state):
                await self._change(thread, "delete_for_runs", drop)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread that has all that another has. It takes no longer for a long one: both share what there is."""
        await self._threads.copy(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace of some threads, or, to `delete`, nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise NotFound(f"there is no strategy {strategy!r}; there are: keep_latest, delete")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                await self._threads.delete(thread)
            elif await self._threads.find(thread) is not None:
                await self._change(thread, "prune", KeepLatest(self.serde))

    async def _change(self, thread: str, name: str, edit: DropRuns | KeepLatest) -> None:
        cached = await self._threads.change(thread, {"name": name, "input": {}}, edit, whole=True)
        await self._threads.forget_past(cached)


def _place(config: RunnableConfig) -> tuple[str, str, str | None]:
    """The thread, the namespace and the checkpoint that a config names."""
    named = config["configurable"]
    return str(named["thread_id"]), named.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _latest(cached: CachedSession | None, namespace: str) -> str | None:
    return None if cached is None else cached.state.latest(namespace)


def _config(thread: str, namespace: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}
