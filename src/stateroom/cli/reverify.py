"""`stateroom reverify`: new rewards for episodes that were run before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.text import Text

from stateroom.cli.output import console, counted, errors, number, print_json, shown_progress, table
from stateroom.cli.run import default_store, make
from stateroom.cli.sessions import existing_store
from stateroom.environment import find_environment
from stateroom.errors import NotFound
from stateroom.rollout import RunFiles
from stateroom.rollout.reverify import Reverification, Reverified
from stateroom.rollout.reverify import reverify as judge_again
from stateroom.rollout.rows import lines_of
from stateroom.rollout.unjudged import Unjudged, judge_unjudged, waiting_in

SHOWN = 10
"""So many tasks, and so many reasons, are shown; --json gives them all."""


def reverify(
    rollouts: Annotated[Path, typer.Argument(help="The rollouts file of a run.", show_default=False)],
    env: Annotated[
        str,
        typer.Option("--env", "-e", help="A registered name, module:Class or path.py:Class: whose verifier judges."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The new rollouts file; the others are named after it.", show_default=False
        ),
    ] = None,
    judge_failed_only: Annotated[
        bool,
        typer.Option(
            "--judge-failed-only", help="Judge only the episodes that have no reward yet, since a judge has failed."
        ),
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Where the sessions are, as a URL; by default the file that the run has left.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(help="Judge the states at this revision; -1 is the step before the one that was judged."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at a time.")] = 32,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give episodes new rewards by today's verifier, from their stored states; no tool is run again.

    Each row gets the verdict on the state that was judged before, with the
    same task, response, luck and shared states; nothing is written to the
    store. A row that cannot honestly be judged again (its session is gone,
    say) goes to the failures file, with the reason. Interrupted, the same
    command goes on where it ended.

    With --judge-failed-only, episodes that a run has put into its failures
    file because a judge failed get their verdict: from there they go to the
    rollouts file, and the metrics are those of all. What fails again stays.

    The command ends with code 1 if no row could be judged.

    Example: stateroom reverify out/counter.jsonl --env counter --output out/again.jsonl

    Example: stateroom reverify out/counter.jsonl --env mine.py:Counter -o out/again.jsonl --store redis://localhost

    Example: stateroom reverify out/letter.jsonl --env mine.py:Letter --judge-failed-only
    """
    if judge_failed_only and (output is not None or at is not None):
        raise typer.BadParameter(
            "not together with --output or --at: the run itself gets its verdicts", param_hint="--judge-failed-only"
        )
    if output is None and not judge_failed_only:
        raise typer.BadParameter("say where the new rollouts go", param_hint="--output")
    environment = make(find_environment(env))
    files = RunFiles(output or rollouts)
    try:
        report = asyncio.run(_reverify(environment, rollouts, output, store, at, concurrency))
    except KeyboardInterrupt:
        errors.print(
            f"interrupted; the same command goes on with what is in {files.rollouts}", style="red", soft_wrap=True
        )
        raise typer.Exit(130) from None
    if json_output:
        print_json(_summary(report, files))
    else:
        _show(environment.name, report, files, again=not judge_failed_only)
    if report.refused and not report.rows:
        raise typer.Exit(1)


async def _reverify(
    environment: Any, rollouts: Path, output: Path | None, store: str | None, at: int | None, concurrency: int
) -> Reverified:
    """Judge rollouts again; without an output, give those of their run that lack one a verdict."""
    files = RunFiles(rollouts)
    async with AsyncExitStack() as stack:
        opened = None
        if environment.state_type is not None:
            opened = await stack.enter_async_context(_store_of(environment, rollouts, store))
        total = len(waiting_in(files)) if output is None else sum(1 for _ in lines_of(rollouts))
        step = await stack.enter_async_context(shown_progress("judging episodes", total))
        if output is None:
            return await judge_unjudged(Unjudged(environment, files, opened, concurrency), step)
        return await judge_again(Reverification(environment, rollouts, RunFiles(output), opened, at, concurrency), step)


def _store_of(environment: Any, rollouts: Path, store: str | None) -> Any:
    if store is not None:
        return existing_store(store)
    left = RunFiles(rollouts)
    if not rollouts.is_file():
        raise NotFound(f"there is no rollouts file {rollouts}")
    if not left.sessions.exists():
        raise NotFound(f"there is no {left.sessions} beside the rollouts; say with --store where their sessions are")
    return existing_store(default_store(environment, left))


def _summary(report: Reverified, files: RunFiles) -> dict[str, Any]:
    return {
        "episodes": len(report.rows),
        "resumed": report.resumed,
        "refused": report.refused,
        "reasons": dict(report.reasons.most_common()),
        "rewards": _rewards(report),
        "tasks": [task._asdict() for task in report.tasks()],
        "metrics": report.metrics["agent_metrics"],
        "files": files.as_dict(),
    }


def _rewards(report: Reverified) -> dict[str, Any]:
    """How many rewards have changed, and their means."""
    pairs = report.changes()
    return {
        "up": sum(after > before for before, after in pairs),
        "down": sum(after < before for before, after in pairs),
        "same": sum(after == before for before, after in pairs),
        "new": len(report.rows) - len(pairs),
        "before": fmean(before for before, _ in pairs) if pairs else None,
        "after": fmean(row["reward"] for row in report.rows) if report.rows else None,
    }


def _show(name: str, report: Reverified, files: RunFiles, again: bool) -> None:
    what = f"{counted(len(report.rows), 'episode', 'episodes')} of {name} {'judged again' if again else 'judged'}"
    what += f", {report.resumed:,} of them before" if report.resumed else ""
    refused = f", {report.refused:,} refused" if report.refused else ""
    console.print(Text.assemble((what, "bold"), (refused, "red")), soft_wrap=True)
    if report.reasons:
        made = table("refused#", "because")
        for reason, count in report.reasons.most_common(SHOWN):
            made.add_row(f"{count:,}", reason)
        console.print(made)
    if report.rows and again:
        rewards = _rewards(report)
        made = table("rewards: up#", "down#", "same#", "mean before#", "after#")
        means = ("-" if rewards[name] is None else number(rewards[name]) for name in ("before", "after"))
        made.add_row(*(f"{rewards[name]:,}" for name in ("up", "down", "same")), *means)
        console.print(made)
    elif report.rows:
        metrics = report.metrics["agent_metrics"]
        console.print(f"the mean reward of all episodes is {number(metrics['mean/reward'])} now", soft_wrap=True)
    if tasks := report.tasks():
        console.print()
        made = table("task#", "episodes#", "mean before#", "after#", title="The tasks that changed most:")
        for task in tasks[:SHOWN]:
            made.add_row(str(task.task), str(task.episodes), number(task.before), number(task.after))
        console.print(made)
        if len(tasks) > SHOWN:
            console.print(f"and {len(tasks) - SHOWN:,} more; --json lists them all", style="dim")
    for kind, path in files.as_dict().items():
        console.print(f"{kind:>9}: {path}", soft_wrap=True)
