"""`stateroom reverify` and `stateroom replay`: verify or run recorded episodes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field
from rich.text import Text

from stateroom.cli.command import Output
from stateroom.cli.options import ENVIRONMENT, STORE_VARIABLE, existing_store
from stateroom.cli.output import (
    console,
    counted,
    interruptible,
    number,
    print_hidden,
    print_table,
    say,
    show_files,
    shown_progress,
)
from stateroom.environment import Environment
from stateroom.errors import InvalidOption, NotFound
from stateroom.jsonl import read_lines
from stateroom.options import Option, options
from stateroom.rollout import (
    EnvArgs,
    Replay,
    ReplayDifference,
    RescoreReport,
    RunFiles,
    default_store,
    environment_of_run,
    names_sessions,
    replay_rollouts,
    replay_session,
    rescore_rollouts,
    score_failures,
    unscored_rows,
)
from stateroom.state import brief
from stateroom.store import Store

MAX_ROWS = 10
"""Tasks, reasons, differences, and lines per difference that are shown; --json has all."""


@options
class RecordedOptions:
    """The environment, tasks and session store of recorded episodes."""

    env: Annotated[str, Field(description=ENVIRONMENT), Option("-e")]
    env_args: EnvArgs = field(default_factory=dict)
    input: Annotated[
        Path | None,
        Field(
            description="Tasks as JSONL, for rollouts without the fields of their tasks, as from NeMo Gym; matched by "
            "prompt."
        ),
        Option("-i"),
    ] = None
    store: Annotated[
        str | None,
        Field(description="The URL of the session store; by default the SQLite file beside the rollouts."),
        Option(variable=STORE_VARIABLE),
    ] = None

    def environment_of(self, rollouts: Path) -> Environment[Any, Any]:
        """The environment, with the run's constructor arguments unless others are given."""
        return environment_of_run(self.env, RunFiles(rollouts), self.env_args)

    async def open_store(self, stack: AsyncExitStack, environment: Environment[Any, Any], files: RunFiles) -> Store:
        """The store of the sessions of a rollouts file."""
        return await stack.enter_async_context(existing_store(self.store or default_store(environment, files)))


@options
class RescoreOptions(RecordedOptions):
    """The options of `stateroom reverify`."""

    rollouts: Annotated[Path, Field(description="The rollouts file of a run.")] = field(kw_only=False)
    output: Annotated[
        Path | None, Field(description="The new rollouts file; other files are named after it."), Option("-o")
    ] = None
    force: Annotated[bool, Field(description="Replace the files of an earlier run at --output.")] = False
    judge_failed_only: Annotated[
        bool, Field(description="Score only episodes without a reward because their judge failed.")
    ] = False
    at: Annotated[
        int | None,
        Field(description="Score the state at this revision; -1 is one step before the scored state."),
    ] = None
    concurrency: Annotated[int, Field(ge=1, description="Concurrent episodes."), Option("-c")] = 32
    solved_threshold: Annotated[
        float | None,
        Field(description="The lowest reward that counts as solved, for pass@k; by default as in the run."),
    ] = None

    def __post_init__(self) -> None:
        if self.judge_failed_only and (self.output is not None or self.at is not None):
            raise InvalidOption(
                "judge_failed_only", "cannot be combined with --output or --at; the verdicts go to the run itself"
            )
        if self.output is None and not self.judge_failed_only:
            raise InvalidOption("output", "required: name the new rollouts file")
        if self.force and self.output is not None and self.output.resolve() == self.rollouts.resolve():
            raise InvalidOption("force", "cannot replace the rollouts themselves; give another --output")


def reverify(options: RescoreOptions) -> Output:
    """Rescore episodes with the current verifier, using their stored states.

    Each row gets a new verdict on the state that was scored before, with the
    same task, response, random state and shared states. The store does not
    change. Rows that cannot be scored, for example because a session is gone,
    go to the failures file with the reason. After an interruption, run the
    same command again to continue.

    Tools do not run again, except for rollouts without sessions, such as NeMo
    Gym's: if the verifier reads more than the response, their calls run again
    in memory, and must return the recorded outputs.

    With --judge-failed-only, only the episodes in the failures file whose
    judge failed are scored. They move to the rollouts file, and the metrics
    are updated. Episodes that fail again stay.

    The environment gets the --env-arg values of the run unless you give others.

    The exit code is 1 if no row could be scored.

    Example: stateroom reverify out/counter.jsonl --env counter --output out/again.jsonl

    Example: stateroom reverify out/counter.jsonl --env mine.py:Counter -o out/again.jsonl --store redis://localhost

    Example: stateroom reverify out/letter.jsonl --env mine.py:Letter --judge-failed-only
    """
    environment = options.environment_of(options.rollouts)
    files = RunFiles(options.output or options.rollouts)
    if options.force and options.output is not None:
        files.remove()
    with interruptible(lambda: f"run the same command again to continue {files.rollouts}"):
        report = asyncio.run(_rescore(environment, options))
    return Output(
        lambda: _scores_data(report, files),
        lambda: _print_scores(environment.name, report, files, again=options.output is not None),
        1 if report.refused and not report.rows else 0,
    )


async def _rescore(environment: Environment[Any, Any], options: RescoreOptions) -> RescoreReport:
    rollouts, output, files = options.rollouts, options.output, RunFiles(options.rollouts)
    async with AsyncExitStack() as stack:
        store = None
        if environment.state_type is not None and (names_sessions(rollouts) or options.store or output is None):
            if options.store is None and not files.sessions.exists():
                raise NotFound(f"{files.sessions} does not exist; name the store of the sessions with --store")
            store = await options.open_store(stack, environment, files)
        total = len(unscored_rows(files)) if output is None else sum(1 for _ in read_lines(rollouts))
        step = await stack.enter_async_context(shown_progress("scoring episodes", total))
        how: dict[str, Any] = {
            "solved_threshold": options.solved_threshold,
            "concurrency": options.concurrency,
            "on_row": step,
        }
        if output is None:
            return await score_failures(environment, files, store, **how)
        new = RunFiles(output)
        return await rescore_rollouts(environment, rollouts, new, store, tasks=options.input, at=options.at, **how)


def _scores_data(report: RescoreReport, files: RunFiles) -> dict[str, Any]:
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
    """The number of changed rewards, and the means."""
    changes = report.changes
    return {
        "up": sum(change.after > change.before for change in changes),
        "down": sum(change.after < change.before for change in changes),
        "same": sum(change.after == change.before for change in changes),
        "new": len(report.rows) - len(changes),
        "before": fmean(change.before for change in changes) if changes else None,
        "after": fmean(row["reward"] for row in report.rows) if report.rows else None,
    }


def _print_scores(name: str, report: RescoreReport, files: RunFiles, *, again: bool) -> None:
    what = f"{counted(len(report.rows), 'episode', 'episodes')} of {name} {'rescored' if again else 'scored'}"
    what += f", {report.resumed:,} of them before" if report.resumed else ""
    refused = f", {report.refused:,} refused" if report.refused else ""
    say(Text.assemble((what, "bold"), (refused, "red")))
    if report.edited:
        what = counted(report.edited, "episode was", "episodes were")
        say(f"{what} edited by a person and cannot be compared", "yellow")
    for argument, (before, now) in report.changed_arguments.items():
        say(f"--env-arg {argument} is {brief(now)}, but was {brief(before)} in the run", "yellow")
    _print_reasons(report.reasons)
    if report.rows and again:
        rewards = _rewards(report)
        means = ("-" if rewards[when] is None else number(rewards[when]) for when in ("before", "after"))
        row = [*(rewards[change] for change in ("up", "down", "same")), *means]
        print_table(("rewards: up#", "down#", "same#", "mean before#", "after#"), [row])
    elif report.rows:
        say(f"the mean reward of all episodes is now {number(report.metrics['agent_metrics']['mean/reward'])}")
    if tasks := report.tasks():
        console.print()
        rows = [(str(task.task), task.episodes, task.before, task.after) for task in tasks]
        columns = ("task#", "episodes#", "mean before#", "after#")
        print_table(columns, rows, title="Largest changes:", most=MAX_ROWS)
    show_files(files)


def _print_reasons(reasons: Counter[str]) -> None:
    """Print why episodes were refused."""
    print_table(("refused#", "because"), [(count, reason) for reason, count in reasons.most_common(MAX_ROWS)])


@options
class ReplayOptions(RecordedOptions):
    """The options of `stateroom replay`."""

    target: Annotated[
        str, Field(description="A session's id, or a rollouts file."), Option(metavar="SESSION|ROLLOUTS")
    ] = field(kw_only=False)
    lenient: Annotated[bool, Field(description="Continue after a difference, and count all differences.")] = False
    reads: Annotated[
        Literal["skip", "check"],
        Field(description="Skip calls that changed nothing, or also check those in the responses."),
    ] = "skip"


def replay(options: ReplayOptions) -> Output:
    """Run recorded calls again, and compare the results with the record.

    Each episode runs in a fresh session in memory, with the same task, random
    state, clock and call ids. The store does not change. Outputs and states
    are compared, and the first difference is shown. If the store no longer has
    a session, only the outputs in the response are compared. You can also
    replay rollouts written by NeMo Gym.
    External tools do not run; their results are taken from the log. Episodes
    that used shared states are refused. Edits by a person are copied from the
    log, and these episodes are marked as not comparable.

    The exit code is 1 if anything differs, or if no comparable episode could
    be replayed.

    Example: stateroom replay out/counter.jsonl --env counter --reads check

    Example: stateroom replay ID --env counter --store sqlite:///rooms.db --lenient
    """
    path = Path(options.target)
    environment = options.environment_of(path)
    if path.is_file():
        replays = asyncio.run(_replay_file(environment, path, options))
    elif options.store is None:
        raise NotFound(f"the rollouts file {path} does not exist; to replay a session, give its --store")
    elif options.reads == "check":
        raise InvalidOption("reads", "a session does not record reads; give its rollouts file")
    else:
        replays = [asyncio.run(_replay_session(environment, options.target, options.store, options.lenient))]
    differs = any(episode.differences for episode in replays)
    return Output(
        lambda: {**_sums(replays), "episodes": [*map(asdict, replays)]},
        lambda: _print_replays(environment.name, replays, options.lenient),
        1 if differs or all(episode.refused or episode.edited for episode in replays) else 0,
    )


async def _replay_session(environment: Environment[Any, Any], session: str, url: str, lenient: bool) -> Replay:
    async with existing_store(url) as store, shown_progress("replaying a session"):
        return await replay_session(environment, store, session, lenient=lenient)


async def _replay_file(environment: Environment[Any, Any], path: Path, options: ReplayOptions) -> list[Replay]:
    async with AsyncExitStack() as stack:
        store, files = None, RunFiles(path)
        if environment.state_type is not None and (options.store is not None or files.sessions.exists()):
            store = await options.open_store(stack, environment, files)
        total = sum(1 for _ in read_lines(path))
        step = await stack.enter_async_context(shown_progress("replaying episodes", total))
        how: dict[str, Any] = {"tasks": options.input, "lenient": options.lenient, "reads": options.reads}
        return await replay_rollouts(environment, path, store, on_row=step, **how)


def _sums(replays: list[Replay]) -> dict[str, int]:
    return {
        "replayed": sum(episode.refused is None for episode in replays),
        "refused": sum(episode.refused is not None for episode in replays),
        "edited": sum(bool(episode.edited) for episode in replays),
        "differing": sum(bool(episode.differences) for episode in replays),
        **{
            kind: sum(getattr(episode, kind) for episode in replays) for kind in ("calls", "reads", "taken", "left_out")
        },
        "differences": sum(len(episode.differences) for episode in replays),
    }


def _print_replays(name: str, replays: list[Replay], lenient: bool) -> None:
    sums = _sums(replays)
    what = f"{counted(sums['replayed'], 'episode', 'episodes')} of {name} replayed"
    verdict = f": {counted(sums['differing'], 'differs', 'differ')}" if sums["differing"] else ": all match"
    if sums["edited"] == sums["replayed"] and not sums["differing"]:
        verdict = ""
    and_refused = f", {sums['refused']:,} refused" if sums["refused"] else ""
    style = "red" if sums["differing"] else "green"
    console.print(Text.assemble((what, "bold"), (verdict if sums["replayed"] else "", style), (and_refused, "red")))
    columns = ("calls rerun#", "reads#", "external, from the log#", "skipped#", "differences#")
    print_table(columns, [[sums[kind] for kind in ("calls", "reads", "taken", "left_out", "differences")]])
    for episode in [episode for episode in replays if episode.edited][:MAX_ROWS]:
        edits = ", ".join(episode.edited)
        say(f"{_place(episode)}: edited {edits}; the edits were copied, so the episode cannot be compared", "yellow")
    differences = [(episode, difference) for episode in replays for difference in episode.differences]
    for episode, difference in differences[:MAX_ROWS]:
        _print_difference(episode, difference)
    print_hidden(len(differences) - MAX_ROWS)
    if differences and not lenient:
        console.print("The replay stopped there; continue with --lenient.", style="dim")
    reasons = [
        episode.refused.replace(repr(episode.session), "…") for episode in replays if episode.refused is not None
    ]
    _print_reasons(Counter(reasons))


def _place(episode: Replay) -> str:
    row = "" if episode.task is None else f"task {episode.task}, rollout {episode.rollout}"
    return ", ".join(part for part in (row, f"session {episode.session}" if episode.session else "") if part)


def _print_difference(episode: Replay, difference: ReplayDifference) -> None:
    what = "the seed" if difference.number == 0 else f"call {difference.number}, {difference.name}"
    given = "" if difference.number == 0 else f"({brief(difference.input)})"
    say(f"\n{_place(episode)}: {what}{given}", "bold")
    if difference.recorded != difference.now:
        say(f"  recorded: {brief(difference.recorded)}")
        say(f"       now: {brief(difference.now)}")
    if difference.states:
        console.print("  state, recorded → now:")
        for line in difference.states[:MAX_ROWS]:
            say(f"    {line}")
        if len(difference.states) > MAX_ROWS:
            console.print(f"    and {len(difference.states) - MAX_ROWS:,} more places", style="dim")
