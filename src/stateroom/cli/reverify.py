"""`stateroom reverify`: rescore episodes that were run before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.text import Text

from stateroom.cli.options import AsJSON, EnvArgs, EnvOption, ExistingStore, Force, RolloutTasks, env_args_of
from stateroom.cli.output import console, counted, errors, number, print_json, show_files, shown_progress, table
from stateroom.cli.sessions import existing_store
from stateroom.environment import Environment
from stateroom.errors import NotFound
from stateroom.jsonl import read_lines
from stateroom.rollout import (
    RescoreReport,
    RunFiles,
    default_store,
    environment_of_run,
    names_sessions,
    rescore_rollouts,
    score_failures,
    unscored_rows,
)
from stateroom.state import brief

MAX_ROWS = 10
"""Tasks, and reasons, that are shown; --json has all."""

NewRollouts = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The new rollouts file; the others are named after it.", show_default=False),
]
JudgeFailedOnly = Annotated[
    bool,
    typer.Option("--judge-failed-only", help="Score only the episodes that have no reward because their judge failed."),
]
SolvedAtAgain = Annotated[
    float | None,
    typer.Option(help="The reward from which an episode counts as solved, for pass@k; by default as in its run."),
]
Revision = Annotated[
    int | None,
    typer.Option(help="Score the states at this revision; -1 is the step before the one that was scored."),
]


def reverify(
    rollouts: Annotated[Path, typer.Argument(help="The rollouts file of a run.", show_default=False)],
    env: EnvOption,
    env_arg: EnvArgs = None,
    input_file: RolloutTasks = None,
    output: NewRollouts = None,
    force: Force = False,
    judge_failed_only: JudgeFailedOnly = False,
    store: ExistingStore = None,
    at: Revision = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at a time.")] = 32,
    solved_threshold: SolvedAtAgain = None,
    json_output: AsJSON = False,
) -> None:
    """Rescore episodes with the current verifier, from their stored states.

    Each row gets the verdict on the state that was scored before, with the
    same task, response, random state and shared states; nothing is written to
    the store. A row that cannot be scored honestly (its session is gone, say)
    goes to the failures file, with the reason. After an interruption, the same
    command continues.

    No tool runs again, except for rollouts that name no sessions, such as NeMo
    Gym's: if the verifier reads more than the response, their calls run again
    in memory, and must have the recorded outputs.

    With --judge-failed-only, the episodes in a run's failures file whose judge
    failed get their verdict: they move to the rollouts file, and the metrics
    are those of all episodes. Those that fail again stay.

    The environment gets the --env-arg of the run, where you give no others.

    The exit code is 1 if no row could be scored.

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
    environment = environment_of_run(env, RunFiles(rollouts), env_args_of(env_arg))
    files = RunFiles(output or rollouts)
    if force and output is not None:
        if output.resolve() == rollouts.resolve():
            raise typer.BadParameter("not for the rollouts themselves; give another --output", param_hint="--force")
        files.remove()
    try:
        report = asyncio.run(
            _rescore(environment, rollouts, input_file, output, store, at, solved_threshold, concurrency)
        )
    except KeyboardInterrupt:
        errors.print(
            f"interrupted; the same command continues with what is in {files.rollouts}", style="red", soft_wrap=True
        )
        raise typer.Exit(130) from None
    if json_output:
        print_json(_summary(report, files))
    else:
        _show(environment.name, report, files, again=not judge_failed_only)
    if report.refused and not report.rows:
        raise typer.Exit(1)


async def _rescore(
    environment: Environment[Any, Any],
    rollouts: Path,
    tasks: Path | None,
    output: Path | None,
    store: str | None,
    at: int | None,
    solved_threshold: float | None,
    concurrency: int,
) -> RescoreReport:
    """Rescore rollouts; without an output, score those of their episodes that have no verdict."""
    files = RunFiles(rollouts)
    async with AsyncExitStack() as stack:
        opened = None
        if environment.state_type is not None and (names_sessions(rollouts) or store or output is None):
            opened = await stack.enter_async_context(_store_of(environment, rollouts, store))
        total = len(unscored_rows(files)) if output is None else sum(1 for _ in read_lines(rollouts))
        step = await stack.enter_async_context(shown_progress("scoring episodes", total))
        if output is None:
            return await score_failures(
                environment, files, opened, solved_threshold=solved_threshold, concurrency=concurrency, on_row=step
            )
        return await rescore_rollouts(
            environment,
            rollouts,
            RunFiles(output),
            opened,
            tasks=tasks,
            at=at,
            solved_threshold=solved_threshold,
            concurrency=concurrency,
            on_row=step,
        )


def _store_of(environment: Environment[Any, Any], rollouts: Path, store: str | None) -> Any:
    if store is not None:
        return existing_store(store)
    files = RunFiles(rollouts)
    if not files.sessions.exists():
        raise NotFound(f"there is no {files.sessions} beside the rollouts; say with --store where their sessions are")
    return existing_store(default_store(environment, files))


def _summary(report: RescoreReport, files: RunFiles) -> dict[str, Any]:
    return {
        "episodes": len(report.rows),
        "resumed": report.resumed,
        "refused": report.refused,
        "edited": report.edited,
        "changed_arguments": report.changed_arguments,
        "reasons": dict(report.reasons.most_common()),
        "rewards": _rewards(report),
        "tasks": [task._asdict() for task in report.tasks()],
        "metrics": report.metrics["agent_metrics"],
        "files": files.as_dict(),
    }


def _rewards(report: RescoreReport) -> dict[str, Any]:
    """How many rewards have changed, and their means."""
    changes = report.changes
    return {
        "up": sum(change.after > change.before for change in changes),
        "down": sum(change.after < change.before for change in changes),
        "same": sum(change.after == change.before for change in changes),
        "new": len(report.rows) - len(changes),
        "before": fmean(change.before for change in changes) if changes else None,
        "after": fmean(row["reward"] for row in report.rows) if report.rows else None,
    }


def _show(name: str, report: RescoreReport, files: RunFiles, again: bool) -> None:
    what = f"{counted(len(report.rows), 'episode', 'episodes')} of {name} {'rescored' if again else 'scored'}"
    what += f", {report.resumed:,} of them before" if report.resumed else ""
    refused = f", {report.refused:,} refused" if report.refused else ""
    console.print(Text.assemble((what, "bold"), (refused, "red")), soft_wrap=True)
    if report.edited:
        what = counted(report.edited, "episode was", "episodes were")
        console.print(f"{what} edited by a person, and not comparable", style="yellow", soft_wrap=True)
    for argument, (before, now) in report.changed_arguments.items():
        told = f"--env-arg {argument} is {brief(now)} here, and was {brief(before)} in the run"
        console.print(told, style="yellow", soft_wrap=True)
    if report.reasons:
        made = table("refused#", "because")
        for reason, count in report.reasons.most_common(MAX_ROWS):
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
        for task in tasks[:MAX_ROWS]:
            made.add_row(str(task.task), str(task.episodes), number(task.before), number(task.after))
        console.print(made)
        if len(tasks) > MAX_ROWS:
            console.print(f"and {len(tasks) - MAX_ROWS:,} more; --json lists them all", style="dim")
    show_files(files)
