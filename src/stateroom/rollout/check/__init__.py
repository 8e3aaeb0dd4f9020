"""Checks of an environment, for `stateroom check`."""

from stateroom.rollout.check.check import check_environment
from stateroom.rollout.check.findings import CheckReport, Finding

__all__ = ["CheckReport", "Finding", "check_environment"]
