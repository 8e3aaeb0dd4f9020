"""`stateroom check`: check an environment before anything runs on it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from stateroom.cli.options import AsJSON, EnvArgs, env_args_of
from stateroom.cli.output import console, counted, print_json, shown_progress, table
from stateroom.environment import Environment, find_environment
from stateroom.errors import DefinitionError
from stateroom.rollout import CheckReport, Finding, check_environment

MAX_LINES = 3
"""Lines of a finding that are shown; --json has all."""

STYLES = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}


def check(
    env: Annotated[str, typer.Argument(help="A registered name, module:Class or path.py:Class.", show_default=False)],
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", help="Tasks as JSONL; by default the environment's examples, or else generated tasks."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Play all tasks; by default 20, evenly spread.")] = False,
    env_arg: EnvArgs = None,
    json_output: AsJSON = False,
) -> None:
    """Check an environment: its schema, tasks, tools and verifier, and what it does with its state.

    Tasks are played in memory by four policies: the environment's reference,
    a random one that calls all tools except external ones, one that does
    nothing, and one that leaves out the reference's last reads and its answer;
    then again, and in turns. External tools that the reference policy
    calls really run.

    The exit code is 1 if there is a problem; warnings do not count. --json
    lists the reference's outcome for each task.

    Example: stateroom check counter

    Example: stateroom check mine.py:MyEnvironment --input more.jsonl --all
    """
    try:
        found = find_environment(env)
    except DefinitionError as error:
        report = CheckReport.undefined(env, str(error))
    else:
        report = asyncio.run(_check(found, input_file, everything, env_args_of(env_arg)))
    if json_output:
        print_json(_summary(report))
    else:
        _show(report)
    if report.problems:
        raise typer.Exit(1)


async def _check(
    environment: type[Environment[Any, Any]], tasks: Path | None, everything: bool, env_args: dict[str, Any]
) -> CheckReport:
    async with shown_progress(f"playing {environment.name}") as step:
        return await check_environment(environment, tasks, env_args=env_args, everything=everything, on_play=step)


def _summary(report: CheckReport) -> dict[str, Any]:
    return {
        "environment": report.environment,
        "ok": not report.problems,
        "tasks": report.tasks,
        "played": report.played,
        "outcomes": [outcome._asdict() for outcome in report.outcomes],
        "checks": [asdict(finding) for finding in report.findings],
    }


def _show(report: CheckReport) -> None:
    made = table("check!", "result!", "what was found")
    for finding in report.findings:
        made.add_row(finding.check, Text(finding.result, STYLES[finding.result]), _told(finding))
    console.print(made)
    console.print()
    console.print(_conclusion(report), soft_wrap=True)


def _conclusion(report: CheckReport) -> Text:
    results = [finding.result for finding in report.findings]
    told = [
        counted(results.count(kind), f"check with a {kind}", f"checks with a {kind}")
        for kind in ("problem", "warning")
        if kind in results
    ]
    worst = "problem" if report.problems else "ok"
    rest = "; --all plays each" if report.played < report.tasks else ""
    played = f"; played {report.played} of {counted(report.tasks, 'task', 'tasks')}{rest}" if report.tasks else ""
    return Text.assemble((f"{report.environment}: {', '.join(told) or 'no problem'}", STYLES[worst]), played)


def _told(finding: Finding) -> str:
    more = len(finding.found) - MAX_LINES
    lines = finding.found[:MAX_LINES] + ([f"and {more} more; --json lists them all"] if more > 0 else [])
    return "\n".join(lines)
