"""Checks of an environment, before anything runs on it."""

from stateroom.rollout.check.check import check_environment
from stateroom.rollout.check.findings import CheckReport, Finding

__all__ = ["CheckReport", "Finding", "check_environment"]
