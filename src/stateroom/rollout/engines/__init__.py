"""Engines: in which processes the episodes of a run happen."""

from stateroom.rollout.engines.choice import open_engine
from stateroom.rollout.engines.crew import Crew
from stateroom.rollout.engines.messages import Finished, ToolFailed

__all__ = ["Crew", "Finished", "ToolFailed", "open_engine"]
