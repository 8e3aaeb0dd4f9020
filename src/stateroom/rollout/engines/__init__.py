"""Engines: in which processes the episodes of a run happen."""

from stateroom.rollout.engines.messages import Finished, ToolFailed
from stateroom.rollout.engines.registry import open_engine
from stateroom.rollout.engines.worker_pool import WorkerPool

__all__ = ["Finished", "ToolFailed", "WorkerPool", "open_engine"]
