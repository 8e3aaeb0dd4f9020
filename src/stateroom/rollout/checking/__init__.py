"""What is wrong with an environment, before anything runs on it."""

from stateroom.rollout.checking.checking import Report, check, undefined
from stateroom.rollout.checking.finding import Finding

__all__ = ["Finding", "Report", "check", "undefined"]
