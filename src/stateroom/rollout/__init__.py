"""How episodes are collected: tasks, the runner, the worlds that they take place in, its files and metrics."""

from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import aggregate, pass_at_k
from stateroom.rollout.resuming import Left
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.runner import Report, Run, run
from stateroom.rollout.tasks import RemoteEnvironment, example_file, generate_tasks, read_tasks

__all__ = [
    "Left",
    "RemoteEnvironment",
    "Report",
    "Run",
    "RunFiles",
    "aggregate",
    "example_file",
    "generate_tasks",
    "pass_at_k",
    "read_tasks",
    "run",
    "verdict_fields",
]
