"""`stateroom runs`, `show`, `compare` and `profile`: look at the runs in a folder and compare them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from heapq import nsmallest
from math import inf
from pathlib import Path
from statistics import fmean
from sys import maxsize
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from stateroom.cli.command import Output
from stateroom.cli.options import RunPath, existing_store
from stateroom.cli.output import (
    MAX_ROWS,
    console,
    counted,
    note,
    number,
    print_conversation,
    print_line,
    print_table,
    say,
    some,
    table,
    with_error,
)
from stateroom.errors import InvalidOption, NotFound, StateroomError
from stateroom.jsonl import line_of, replace_lines
from stateroom.model import Item
from stateroom.rollout import (
    UNREADABLE,
    RunComparison,
    RunIndex,
    RunSummary,
    Said,
    Search,
    StoredEpisode,
    StoredRun,
    TaskComparison,
    TaskProfile,
    compare_runs,
    find_runs,
    profile_runs,
)
from stateroom.session import item_lines
from stateroom.state import cut_pair
from stateroom.store import Store

MAX_EPISODES = 3
"""Episodes shown by default."""

MAX_ITEM_CHARACTERS = 800
"""Characters shown per item; --json has all."""

MAX_PAIR_CHARACTERS = 120
"""Characters shown per item in a comparison."""

STYLES: dict[Literal["won", "lost", "tied"], str] = {"won": "green", "lost": "red", "tied": ""}


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder; subfolders are searched too.")] = Path("rollouts"),
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many runs.")] = 50,
) -> Output:
    """List the runs in a folder, newest first, including running and interrupted ones.

    Example: stateroom runs

    Example: stateroom runs out --json
    """
    summaries = sorted((_summary(run, folder) for run in find_runs(folder)), key=lambda run: run.started, reverse=True)
    return Output(lambda: [run.data() for run in summaries], lambda: _print_runs(summaries, folder, limit))


def _summary(run: StoredRun, folder: Path) -> RunSummary:
    try:
        return run.summary(folder, Search(RunIndex.of(run.files)))
    except UNREADABLE as error:
        return run.unreadable(folder, error)


def _print_runs(runs: list[RunSummary], folder: Path, limit: int) -> None:
    if not runs:
        console.print(f"no runs in {folder}")
        return
    made = table("run", "done#!", "failed#!", "reward#!", "pass@1#!", "started (UTC)!")
    for run in runs[:limit]:
        reward = with_error(run.metrics, "mean/reward", "reward") if run.metrics else "-"
        passed = number(run.metrics["pass@1"]) if run.metrics else "-"
        started = f"{run.started:%Y-%m-%d %H:%M}"
        made.add_row(run.name, f"{run.done}/{run.episodes}", str(run.failed), reward, passed, started)
        made.add_row(f"{run.environment or 'unknown'}, by {run.model or 'unknown'}", style="dim")
        for warning in run.warnings:
            made.add_row(warning, style="yellow")
    console.print(made)
    if len(runs) > limit:
        console.print(f"the newest {limit} of {len(runs)}; show more with --limit", style="dim")


async def show(
    run: RunPath,
    task: Annotated[int | None, typer.Option(min=0, help="Only episodes of this task.")] = None,
    rollout: Annotated[int | None, typer.Option(min=0, help="Only the episode with this rollout index.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed episodes, which have no reward.")] = False,
    lowest: Annotated[int | None, typer.Option(min=1, help="Only the N episodes with the lowest rewards.")] = None,
    store: Annotated[str | None, typer.Option(help="The URL of the session store; by default that of the run.")] = None,
) -> Output:
    """Show episodes of a run: messages, calls with their state changes, and the verdict with its reason.

    If the session store is not available, episodes are shown without state changes.

    Example: stateroom show rollouts/counter.jsonl --lowest 5

    Example: stateroom show rollouts/counter.jsonl --task 3 --rollout 1
    """
    if failed and lowest is not None:
        raise InvalidOption("lowest", "cannot be combined with --failed, because failed episodes have no reward")
    stored = StoredRun.find(run)
    chosen = [
        episode
        for episode in stored.episodes()
        if task in (None, episode.task) and rollout in (None, episode.rollout) and (episode.failed or not failed)
    ]
    if not chosen:
        file = stored.files.rollouts
        raise NotFound(
            f"{file} has no failed episode that matches; show the lowest rewards with --lowest 5"
            if failed
            else f"{file} has no episode that matches"
        )
    total = len(chosen)
    if lowest is not None:
        chosen = _lowest((episode for episode in chosen if not episode.failed), lowest)
    elif not failed and task is None and rollout is None:
        chosen = _lowest(chosen, MAX_EPISODES)
    else:
        chosen.sort(key=lambda episode: (episode.task, episode.rollout))
    conversations, missing = await _read(stored, chosen, store)
    episodes = [*zip(chosen, conversations, strict=True)]

    def print_all() -> None:
        for episode, conversation in episodes:
            _print_episode(episode, conversation)
        if total > len(episodes):
            shown = f"{len(episodes)} of {counted(total, 'episode', 'episodes')}, the lowest rewards first"
            console.print(f"{shown}; choose others with --task, --rollout, --failed or --lowest")
        if missing:
            note(f"without state changes: {missing}")

    return Output(lambda: [episode.data(items) for episode, items in episodes], print_all)


def _lowest(episodes: Iterable[StoredEpisode], most: int) -> list[StoredEpisode]:
    """The episodes with the lowest rewards, after the failed ones, which have none."""
    return nsmallest(most, episodes, lambda episode: (-inf if episode.reward is None else episode.reward, episode.task))


async def _read(run: StoredRun, episodes: list[StoredEpisode], store: str | None) -> tuple[list[Said], str | None]:
    """The conversation of each episode and, if state changes are missing, the reason."""
    async with AsyncExitStack() as stack:
        opened: Store | None = None
        missing = None
        url = store or run.store
        if url is not None:
            try:
                opened = await stack.enter_async_context(existing_store(url))
            except StateroomError as error:
                if store is not None:
                    raise
                missing = f"{error}; name the session store with --store"
        else:
            missing = _missing_store(run)
        conversations = []
        for episode in episodes:
            try:
                conversations.append(await episode.said(opened))
            except StateroomError as error:  # such as an expired session
                conversations.append(await episode.said(None))
                missing = str(error)
        return conversations, missing


def _missing_store(run: StoredRun) -> str | None:
    """Why the sessions of a run are in no store; None for a stateless environment."""
    known = run.description
    if known is None:
        return f"{run.files.description} does not exist; name the session store with --store"
    if known.server is not None:
        return f"the sessions are on the server {known.server}"
    return None if known.store is None else "the run kept its sessions only in memory"


def _print_episode(episode: StoredEpisode, conversation: Said) -> None:
    result = "failed" if episode.reward is None else f"reward {number(episode.reward)}"
    style = "bold red" if episode.reward is None else "bold"
    console.print(f"task {episode.task}, rollout {episode.rollout}: {result}", style=style)
    print_conversation(conversation, MAX_ITEM_CHARACTERS)
    for name, text in verdict_lines(episode.row):
        print_line(name, text)
    row = episode.row
    details = [f"session {episode.session}"] if episode.session is not None else []
    details += [f"{name} {seconds:.2f} s" for name, seconds in row.get("_stateroom_times", {}).items()]
    details += [f"cost {row['cost']:.3g}"] if "cost" in row else []
    if details:
        print_line("", ", ".join(details), "dim")
    console.print()


def verdict_lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The reward with its reason and components, or the error, each with a label."""
    if "_ng_failure_class" in row:
        return [("error", str(row.get("error")))]
    parts = [("verdict", f"reward {number(row['reward'])}" + (f": {row['reason']}" if row.get("reason") else ""))]
    components = ", ".join(f"{name} {number(value)}" for name, value in (row.get("reward_components") or {}).items())
    return [*parts, *([("", components)] if components else [])]


def compare(first: RunPath, second: RunPath) -> Output:
    """Compare two runs of the same tasks: wins, losses, the difference, and where episodes diverge.

    The reward of a task is the mean over its episodes. The difference is the mean over tasks, with a bootstrap
    interval by task. For each changed task, the first two episodes with different rewards are compared.

    Example: stateroom compare rollouts/before.jsonl rollouts/after.jsonl
    """
    pair = StoredRun.find(first), StoredRun.find(second)
    comparison = compare_runs(*pair)

    def print_all() -> None:
        for letter, run in zip("AB", pair, strict=True):
            by = f", by {run.description.model}" if run.description is not None else ""
            say(f"{letter}: {run.files.rollouts}{by}")
        _print_comparison(comparison)
        if changed := [task for task in comparison.tasks if task.outcome != "tied"]:
            print_table(
                ("task#", "A#", "B#", "B - A#", "where they diverge"), [*map(_difference, changed)], most=MAX_ROWS
            )
            where = "" if changed[0].rollout is None else f" --rollout {changed[0].rollout}"
            for path in (first, second):
                say(f"$ stateroom show {path} --task {changed[0].task}{where}", "dim")
        for warning in _warnings(comparison):
            note(warning)

    return Output(lambda: _comparison_data(comparison), print_all)


def _comparison_data(comparison: RunComparison) -> dict[str, Any]:
    return {
        **{outcome: comparison.count(outcome) for outcome in STYLES},
        "difference": comparison.difference,
        "interval": comparison.interval(),
        "tasks": [
            {
                **vars(task),
                "outcome": task.outcome,
                "difference": task.difference,
                "divergence": None if task.divergence is None else task.divergence._asdict(),
            }
            for task in comparison.tasks
        ],
        **{name: getattr(comparison, name) for name in ("different", "only_first", "only_second", "edited")},
    }


def _print_comparison(comparison: RunComparison) -> None:
    won, lost, tied = map(comparison.count, STYLES)
    console.print(
        Text.assemble(
            (f"{counted(len(comparison.tasks), 'task', 'tasks')}: ", "bold"),
            (f"B won {won}", STYLES["won"]),
            ", ",
            (f"lost {lost}", STYLES["lost"]),
            f", tied {tied}",
        )
    )
    interval = comparison.interval()
    sure = "" if interval is None else f" (95% from {interval[0]:+.3f} to {interval[1]:+.3f})"
    first, second = (fmean(getattr(task, run) for task in comparison.tasks) for run in ("first", "second"))
    console.print(f"mean reward: A {number(first)}, B {number(second)}, difference {comparison.difference:+.3f}{sure}")


def _difference(task: TaskComparison) -> tuple[Any, ...]:
    """The rewards of a task in two runs, and where two of its episodes diverge."""
    if task.divergence is not None:
        pair = (_line(task.divergence.first), _line(task.divergence.second))
        one, other = cut_pair(*pair, MAX_PAIR_CHARACTERS)
        parting = f"rollout {task.rollout}, item {task.divergence.item}\nA {one}\nB {other}"
    else:
        parting = "no rollout index has different rewards" if task.rollout is None else "same conversation"
    return str(task.task), task.first, task.second, Text(f"{task.difference:+.3g}", STYLES[task.outcome]), parting


def _line(item: Item | None) -> str:
    if item is None:
        return "ends"
    (speaker, first), *others = item_lines(item, width=maxsize)  # the difference may be far into the text
    return " ".join([f"{speaker}: {first}", *(line for _, line in others)])


def _warnings(comparison: RunComparison) -> list[str]:
    lists = {
        "skipped, because these tasks differ": comparison.different,
        "only A has a reward for": comparison.only_first,
        "only B has a reward for": comparison.only_second,
    }
    warnings = [f"{words}: task {some(tasks)}" for words, tasks in lists.items() if tasks]
    if comparison.edited:
        what = counted(len(comparison.edited), "episode was", "episodes were")
        tasks = sorted({task for task, _ in comparison.edited})
        warnings.append(f"skipped, because {what} edited by a person: task {some(tasks)}")
    return warnings


def profile(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Runs: rollouts files, names without .jsonl, or folders.", show_default=False, metavar="RUN..."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tasks with signal to this JSONL file.")
    ] = None,
) -> Output:
    """Show how difficult the tasks of runs are: solve rates, and the spread of rewards.

    A task carries a training signal if its episodes have different rewards.

    Example: stateroom profile rollouts/counter.jsonl

    Tasks to train on: stateroom profile rollouts/weak.jsonl rollouts/strong.jsonl --output train.jsonl
    """
    stored = [run for path in runs for run in (find_runs(path) if path.is_dir() else [StoredRun.find(path)])]
    tasks = sorted(profile_runs(stored), key=lambda task: (task.environment, task.solve_rate, task.task))
    chosen = [task for task in tasks if task.signal]
    if output is not None:
        environments = sorted({task.environment for task in tasks})
        if len(environments) > 1:
            raise InvalidOption(
                "output", f"a task file must have tasks of one environment, not of {', '.join(environments)}"
            )
        replace_lines(output, (line_of(task.row()) for task in chosen))

    def print_all() -> None:
        _print_profile(tasks, counted(len(stored), "run", "runs"))
        if output is not None:
            say(f"{counted(len(chosen), 'task', 'tasks')} in {output}")

    return Output(
        lambda: {"runs": len(stored), "signal": len(chosen), "tasks": [*map(_profile_data, tasks)]}, print_all
    )


def _profile_data(task: TaskProfile) -> dict[str, Any]:
    return {
        "environment": task.environment,
        "run": str(task.run.files.rollouts),
        "task": task.task,
        "episodes": len(task.rewards),
        "solved": task.solve_rate,
        **{name.removesuffix("/reward"): value for name, value in task.metrics().items()},
        "signal": task.signal,
    }


def _print_profile(tasks: list[TaskProfile], runs: str) -> None:
    alike = [task.solve_rate for task in tasks if not task.signal]
    what = f"{counted(len(tasks), 'task', 'tasks')} in {runs}: {len(tasks) - len(alike)} with signal"
    console.print(f"{what}, {alike.count(1)} always and {alike.count(0)} never solved", style="bold")
    rows = []
    for task in tasks:
        metrics = task.metrics()
        rewards = (metrics[f"{name}/reward"] for name in ("mean", "std", "min", "max"))
        signal = "yes" if task.signal else "no"
        rows.append((task.environment, str(task.task), len(task.rewards), task.solve_rate, *rewards, signal))
    columns = ("environment", "task#", "episodes#", "solved#", "reward#", "std#", "min#", "max#", "signal")
    print_table(columns, rows, most=MAX_ROWS)
    if single := sum(len(task.rewards) == 1 for task in tasks):
        note(f"{counted(single, 'task has', 'tasks have')} one episode, which shows no spread; run them with --repeats")
