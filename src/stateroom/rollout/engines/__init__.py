"""Engines: the processes in which the episodes of a run happen."""

from stateroom.rollout.engines.engine import Finished, ToolFailed
from stateroom.rollout.engines.worker_pool import WorkerPool

__all__ = ["Finished", "ToolFailed", "WorkerPool"]
