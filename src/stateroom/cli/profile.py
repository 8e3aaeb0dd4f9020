"""`stateroom profile`: how difficult the tasks of runs are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, counted, errors, number, print_json, table
from stateroom.jsonl import line_of, replace_lines
from stateroom.rollout import StoredRun, TaskProfile, find_runs, profile_runs

MAX_ROWS = 20
"""Tasks that are shown; --json has all."""


def profile(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Rollouts files, their names without .jsonl, or folders of runs.", show_default=False, metavar="RUN..."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tasks that carry signal to this JSONL file.")
    ] = None,
    json_output: AsJSON = False,
) -> None:
    """Show how difficult the tasks of runs are: how often each is solved, and the spread of its rewards.

    A task carries signal if its episodes have different rewards. One that is always or never solved teaches nothing.

    Example: stateroom profile rollouts/counter.jsonl

    Tasks to train on: stateroom profile rollouts/weak.jsonl rollouts/strong.jsonl --output train.jsonl
    """
    found = [run for path in runs for run in (find_runs(path) if path.is_dir() else [StoredRun.find(path)])]
    tasks = sorted(profile_runs(found), key=lambda each: (each.environment, each.solve_rate, each.task))
    chosen = [each for each in tasks if each.signal]
    if output is not None:
        _ensure_one({each.environment for each in tasks})
        replace_lines(output, (line_of(each.row()) for each in chosen))
    if json_output:
        print_json({"runs": len(found), "signal": len(chosen), "tasks": [_data(each) for each in tasks]})
        return
    _show(tasks, counted(len(found), "run", "runs"))
    if output is not None:
        console.print(f"{counted(len(chosen), 'task', 'tasks')} in {output}", soft_wrap=True)


def _ensure_one(environments: set[str]) -> None:
    """Refuse to mix the tasks of several environments: a task file is of one."""
    if len(environments) > 1:
        names = ", ".join(sorted(environments))
        raise typer.BadParameter(f"a task file is of one environment, not of {names}", param_hint="--output")


def _show(tasks: list[TaskProfile], runs: str) -> None:
    alike = [each for each in tasks if not each.signal]
    always = sum(each.solve_rate == 1 for each in alike)
    never = sum(each.solve_rate == 0 for each in alike)
    carry = len(tasks) - len(alike)
    told = f"{counted(len(tasks), 'task', 'tasks')} in {runs}: {carry} with signal"
    console.print(f"{told}, {always} always and {never} never solved", style="bold")
    made = table("environment", "task#", "episodes#", "solved#", "reward#", "std#", "min#", "max#", "signal")
    for each in tasks[:MAX_ROWS]:
        found = each.metrics()
        figures = (each.solve_rate, *(found[f"{name}/reward"] for name in ("mean", "std", "min", "max")))
        counts = (str(each.task), str(len(each.rewards)))
        made.add_row(each.environment, *counts, *map(number, figures), "yes" if each.signal else "no")
    console.print(made)
    if len(tasks) > MAX_ROWS:
        console.print(f"and {len(tasks) - MAX_ROWS:,} more; --json lists them all", style="dim")
    if single := sum(len(each.rewards) == 1 for each in tasks):
        what = counted(single, "task has", "tasks have")
        errors.print(f"{what} one episode, which tells no spread: run them with --repeats", style="yellow")


def _data(task: TaskProfile) -> dict[str, Any]:
    return {
        "environment": task.environment,
        "run": str(task.run.files.rollouts),
        "task": task.task,
        "episodes": len(task.rewards),
        "solved": task.solve_rate,
        **{name.removesuffix("/reward"): value for name, value in task.metrics().items()},
        "signal": task.signal,
    }
