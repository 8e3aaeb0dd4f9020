"""Checkpoints as a graph would make them."""

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from stateroom.adapters.langgraph import StateroomSaver


def config(thread: str, checkpoint: str | None = None, namespace: str = "") -> RunnableConfig:
    named = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": named if checkpoint is None else {**named, "checkpoint_id": checkpoint}}


def checkpoint(id: str, values: Mapping[str, Any], version: int = 1) -> Checkpoint:
    return Checkpoint(
        v=4,
        id=id,
        ts="2026-01-01T00:00:00+00:00",
        channel_values=dict(values),
        channel_versions=dict.fromkeys(values, version),
        versions_seen={"node": dict.fromkeys(values, version)},
        updated_channels=None,
    )


async def put(
    saver: StateroomSaver,
    thread: str,
    id: str,
    values: Mapping[str, Any],
    parent: str | None = None,
    namespace: str = "",
    **metadata: Any,
) -> RunnableConfig:
    """Put a checkpoint all of whose values may have changed."""
    made = checkpoint(id, values)
    known: Any = {"source": "loop", "step": 1, "parents": {}, **metadata}
    return await saver.aput(config(thread, parent, namespace), made, known, made["channel_versions"])


async def values_of(saver: StateroomSaver, thread: str, id: str | None = None, namespace: str = "") -> Any:
    """The values of a checkpoint, the latest by default; None if it is not there."""
    found = await saver.aget_tuple(config(thread, id, namespace))
    return None if found is None else found.checkpoint["channel_values"]


async def writes_of(saver: StateroomSaver, thread: str, id: str | None = None, namespace: str = "") -> Any:
    """The writes after a checkpoint that is there, the latest by default."""
    found = await saver.aget_tuple(config(thread, id, namespace))
    assert found is not None
    return found.pending_writes


async def ids_of(saver: StateroomSaver, thread: str) -> list[str]:
    """The checkpoints of a thread, the newest first."""
    return [found.checkpoint["id"] async for found in saver.alist({"configurable": {"thread_id": thread}})]
