"""Plans of an environment and a model as they are, whose tasks nobody has checked."""

from __future__ import annotations

from typing import Any

from stateroom.environment import Environment
from stateroom.model import ModelSource
from stateroom.rollout import Branching, BranchOptions, Rule, Run, RunFiles, RunOptions, TreeFiles


def make_run(
    environment: Environment[Any, Any],
    model: ModelSource,
    tasks: list[dict[str, Any]],
    files: RunFiles,
    *,
    lease: float = 30.0,
    **options: Any,
) -> Run:
    return Run(environment, model, RunOptions(output=files.rollouts, **options), tasks, files, lease)


def make_branching(
    environment: Environment[Any, Any],
    model: ModelSource,
    tasks: list[dict[str, Any]],
    files: TreeFiles,
    rule: Rule,
    **options: Any,
) -> Branching:
    return Branching(environment, model, BranchOptions(rule=rule, output=files.rollouts, **options), tasks, files, rule)
