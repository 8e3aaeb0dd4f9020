"""How episodes are collected: tasks, runs and their files, metrics, branches, rescoring, replay and checks."""

from stateroom.rollout.branching import (
    Beam,
    BestOf,
    Branching,
    Budget,
    Grown,
    MonteCarlo,
    Node,
    Rule,
    Tree,
    TreeFiles,
    branch,
    read_trees,
)
from stateroom.rollout.check import CheckReport, Finding, check_environment
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import aggregate, pass_at_k
from stateroom.rollout.replay import Replay, ReplayDifference, replay_rollouts, replay_session
from stateroom.rollout.rescore import RescoreReport, rescore_rollouts, score_failures, unscored_rows
from stateroom.rollout.resume import Left
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.runner import Report, Run, run
from stateroom.rollout.tasks import RemoteEnvironment, example_file, generate_tasks, read_tasks

__all__ = [
    "Beam",
    "BestOf",
    "Branching",
    "Budget",
    "CheckReport",
    "Finding",
    "Grown",
    "Left",
    "MonteCarlo",
    "Node",
    "RemoteEnvironment",
    "Replay",
    "ReplayDifference",
    "Report",
    "RescoreReport",
    "Rule",
    "Run",
    "RunFiles",
    "Tree",
    "TreeFiles",
    "aggregate",
    "branch",
    "check_environment",
    "example_file",
    "generate_tasks",
    "pass_at_k",
    "read_tasks",
    "read_trees",
    "replay_rollouts",
    "replay_session",
    "rescore_rollouts",
    "run",
    "score_failures",
    "unscored_rows",
    "verdict_fields",
]
