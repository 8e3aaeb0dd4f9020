"""`stateroom runs`: list the runs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, number, print_json, table, with_error
from stateroom.rollout import UNREADABLE, RunIndex, RunSummary, Search, StoredRun, find_runs


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder; those in it are searched too.")] = Path("rollouts"),
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
    json_output: AsJSON = False,
) -> None:
    """List the runs in a folder, the newest first. Runs that are under way, or were killed, are listed too.

    Example: stateroom runs

    Example: stateroom runs out --json
    """
    found = sorted((_summary(run, folder) for run in find_runs(folder)), key=lambda each: each.started, reverse=True)
    if json_output:
        print_json([each.data() for each in found])
        return
    if not found:
        console.print(f"no runs in {folder}")
        return
    made = table("run", "done#", "failed#", "reward#", "pass@1#", "started (UTC)!")
    for column in made.columns[1:]:
        column.no_wrap = True
    for each in found[:limit]:
        reward = with_error(each.metrics, "mean/reward", "reward") if each.metrics else "-"
        passed = number(each.metrics["pass@1"]) if each.metrics else "-"
        done = f"{each.done}/{each.episodes}"
        when = f"{each.started:%Y-%m-%d %H:%M}"
        made.add_row(each.name, done, str(each.failed), reward, passed, when)
        made.add_row(f"{each.environment or 'unknown'}, by {each.model or 'unknown'}", style="dim")
        for warning in each.warnings:
            made.add_row(warning, style="yellow")
    console.print(made)
    if len(found) > limit:
        console.print(f"the newest {limit} of {len(found)}; --limit shows more", style="dim")


def _summary(run: StoredRun, folder: Path) -> RunSummary:
    try:
        return run.summary(folder, Search(RunIndex.of(run.files)))
    except UNREADABLE as error:
        return run.unreadable(folder, error)
