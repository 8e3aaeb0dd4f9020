"""Plans of an environment and a model as they are, whose tasks nobody has checked."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from stateroom.environment import Environment
from stateroom.model import ModelSource
from stateroom.rollout import BranchOptions, BranchPlan, Rule, RunFiles, RunOptions, RunPlan, TreeFiles


def make_run(
    environment: Environment[Any, Any],
    model: ModelSource,
    tasks: list[dict[str, Any]],
    files: RunFiles,
    *,
    lease: float = 30.0,
    **options: Any,
) -> RunPlan:
    return RunPlan(environment, model, RunOptions(output=files.rollouts, **options), tasks, files, lease)


def noisy_run(environment: type[Environment[Any, Any]], tasks: int, folder: Path, store: str) -> RunPlan:
    """A run of the noisy policy on some tasks that the environment makes."""
    return make_run(
        environment=environment(),
        model=ModelSource("noisy", environment.policies["noisy"]),
        tasks=[environment.generate(Random(number)) for number in range(tasks)],
        files=RunFiles(folder / f"{environment.name}.jsonl"),
        store=store,
    )


def make_branching(
    environment: Environment[Any, Any],
    model: ModelSource,
    tasks: list[dict[str, Any]],
    files: TreeFiles,
    rule: Rule,
    **options: Any,
) -> BranchPlan:
    return BranchPlan(
        environment, model, BranchOptions(rule=rule, output=files.rollouts, **options), tasks, files, rule
    )
