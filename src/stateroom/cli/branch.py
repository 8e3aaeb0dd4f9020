"""`stateroom branch`: episodes that branch."""

from __future__ import annotations

import asyncio
from statistics import fmean
from typing import Any

import typer
from rich.text import Text

from stateroom.cli.options import AsJSON, warn_of_missing_prompts
from stateroom.cli.output import console, counted, errors, number, print_json, show_files, table
from stateroom.rollout import (
    Branching,
    BranchOptions,
    ProgressBar,
    TreeReport,
    branch as grow_trees,
)

MAX_ROWS = 20
"""Tasks that are shown one by one."""

COLUMNS = ("reward", "tree_reward", "tree_branches", "tree_steps", "tree_tool_calls")


def branch(options: BranchOptions, json_output: AsJSON = False) -> None:
    """Branch episodes: a model tries several ways from states in the middle of episodes, and a rule chooses the best.

    The rule says where the episodes branch. best-of: at one step, and the best end is the answer. beam: at each step,
    and the nodes of the highest value continue. monte-carlo: at each state of one episode, to estimate its value.

    Example: stateroom branch extraction --model noisy --rule best-of --n 4 --at 2

    Example: stateroom branch extraction --model noisy --rule beam --width 2 --continuations 2

    On a server: stateroom branch counter --rule monte-carlo --server http://127.0.0.1:8000
    """
    plan = Branching.of(options)
    warn_of_missing_prompts(plan.environment, plan.tasks)
    _finish(plan, _grow(plan), json_output)


def _grow(plan: Branching) -> TreeReport:
    """Grow the trees with a progress bar."""
    name = plan.environment.name
    bar = ProgressBar(name, len(plan.tasks[: plan.options.limit]))
    branches = 0

    def grown(_: Any) -> None:
        nonlocal branches
        branches += 1
        bar.what = f"{name}, {counted(branches, 'branch', 'branches')}"
        bar.start()  # not before: a run that is refused shows no bar

    try:
        return asyncio.run(grow_trees(plan, grown, lambda _: bar.advance()))
    except KeyboardInterrupt:
        errors.print(f"interrupted; what has grown is in {plan.files.tree}", style="red", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        bar.stop()


def _finish(plan: Branching, report: TreeReport, json_output: bool) -> None:
    """Print a report; the exit code is 1 if a task has no answer, or a branch failed."""
    if json_output:
        print_json(
            {
                "tasks": report.tasks,
                "failed": report.failed,
                "branches": report.branches,
                "broken": report.broken,
                "elapsed": round(report.elapsed, 3),
                "tool_failures": report.tool_failures.counts,
                "metrics": report.metrics["agent_metrics"],
                "files": plan.files.as_dict(),
            }
        )
    else:
        _show(plan, report)
    if report.failed or report.broken:
        raise typer.Exit(1)


def _show(plan: Branching, report: TreeReport) -> None:
    """Print a report as a table: the answers, and what their trees took."""
    who = f"{plan.environment.name}, by {plan.model.name}, {plan.options.rule}"
    what = f"{counted(report.tasks, 'task', 'tasks')} of {who}"
    failed = f", {report.failed} without an answer" if report.failed else ""
    broken = f", {counted(report.broken, 'branch', 'branches')} failed" if report.broken else ""
    console.print(Text.assemble((what, "bold"), (failed + broken, "red")), soft_wrap=True)
    if report.first_error:
        console.print(f"the first failure: {report.first_error}", style="red", soft_wrap=True)
    if report.tool_failures:
        console.print(str(report.tool_failures), style="red", soft_wrap=True)
    if report.rows:
        made = table("task#", "answer", "reward#", "all ends#", "branches#", "steps#", "tool calls#")
        rows = sorted(report.rows, key=lambda row: row["_ng_task_index"])
        for row in rows[:MAX_ROWS]:
            figures = (number(row[name]) for name in COLUMNS)
            made.add_row(str(row["_ng_task_index"]), row["_stateroom_node"], *figures)
        if len(rows) > MAX_ROWS:
            made.add_row("…", f"and {len(rows) - MAX_ROWS} more", style="dim")
        made.add_section()
        made.add_row("all", "mean", *(number(fmean(row[name] for row in rows)) for name in COLUMNS), style="bold")
        console.print(made)
    console.print(f"{report.elapsed:,.1f} s")
    show_files(plan.files)
    console.print(f"$ stateroom tree {plan.files.tree}", style="dim", soft_wrap=True)
