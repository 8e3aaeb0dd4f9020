"""`stateroom show`: read the episodes of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from heapq import nsmallest
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, counted, errors, number, print_json, print_line, print_said
from stateroom.cli.sessions import existing_store
from stateroom.errors import NotFound, StateroomError
from stateroom.rollout import Said, StoredEpisode, StoredRun
from stateroom.store import Store

MAX_EPISODES = 3
"""Episodes that are shown if none are chosen."""

LONGEST = 800
"""Characters of an item that are shown; --json has all."""

RunPath = Annotated[
    Path, typer.Argument(help="The rollouts file of a run, its name without .jsonl, or its folder.", show_default=False)
]


def show(
    run: RunPath,
    task: Annotated[int | None, typer.Option(min=0, help="Only episodes of this task.")] = None,
    rollout: Annotated[int | None, typer.Option(min=0, help="Only the episode with this rollout index.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only episodes without a reward, because something broke down.")
    ] = False,
    lowest: Annotated[int | None, typer.Option(min=1, help="Only the N episodes with the lowest rewards.")] = None,
    store: Annotated[
        str | None, typer.Option(help="The store of the sessions, as a URL; by default that of the run.")
    ] = None,
    json_output: AsJSON = False,
) -> None:
    """Show episodes of a run: what was said, what each call changed in the state, and the verdict with its reason.

    The run names its store itself. Without the store, episodes are shown without state changes.

    Example: stateroom show rollouts/counter.jsonl --lowest 5

    Example: stateroom show rollouts/counter.jsonl --task 3 --rollout 1
    """
    if failed and lowest is not None:
        raise typer.BadParameter("not together with --failed: such episodes have no reward", param_hint="--lowest")
    found = StoredRun.find(run)
    chosen = [
        each
        for each in found.episodes()
        if task in (None, each.task) and rollout in (None, each.rollout) and (each.failed or not failed)
    ]
    if not chosen:
        raise NotFound(_none_found(found, failed))
    total = len(chosen)
    if lowest is not None:
        chosen = _lowest((each for each in chosen if not each.failed), lowest)
    elif not failed and task is None and rollout is None:
        chosen = _lowest(chosen, MAX_EPISODES)
    else:
        chosen.sort(key=lambda each: (each.task, each.rollout))
    said, missing = asyncio.run(_read(found, chosen, store))
    if json_output:
        print_json([each.data(items) for each, items in zip(chosen, said, strict=True)])
        return
    for each, items in zip(chosen, said, strict=True):
        _print_episode(each, items)
    if total > len(chosen):
        choose = "choose with --task, --rollout, --failed or --lowest"
        console.print(f"{len(chosen)} of {counted(total, 'episode', 'episodes')}, the lowest rewards first; {choose}")
    if missing:
        errors.print(f"without state changes: {missing}", style="yellow", soft_wrap=True)


def _none_found(run: StoredRun, failed: bool) -> str:
    if failed:
        return f"no such episode of {run.files.rollouts} failed; --lowest 5 shows those with the lowest rewards"
    return f"{run.files.rollouts} has no such episode"


def _lowest(episodes: Iterable[StoredEpisode], most: int) -> list[StoredEpisode]:
    """The episodes with the lowest rewards; first those that failed, which have none."""
    return nsmallest(most, episodes, lambda each: (-inf if each.reward is None else each.reward, each.task))


async def _read(run: StoredRun, episodes: list[StoredEpisode], store: str | None) -> tuple[list[Said], str | None]:
    """What was said in each episode, and why there are no state changes if there are none."""
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
                missing = f"{error}; say with --store where the sessions are"
        else:
            missing = _missing_store(run)
        said = []
        for each in episodes:
            try:
                said.append(await each.said(opened))
            except StateroomError as error:  # the session has expired, say
                said.append(await each.said(None))
                missing = str(error)
        return said, missing


def _missing_store(run: StoredRun) -> str | None:
    """Why the sessions of a run are in no store; None if it has no states."""
    known = run.description
    if known is None:
        return f"there is no {run.files.description}; say with --store where the sessions are"
    if known.server is not None:
        return f"the sessions are on the server {known.server}"
    return None if known.store is None else "the run has kept its sessions only in memory"


def _print_episode(episode: StoredEpisode, said: Said) -> None:
    result = "failed" if episode.reward is None else f"reward {number(episode.reward)}"
    style = "bold red" if episode.reward is None else "bold"
    what = f"task {episode.task}, rollout {episode.rollout}: {result}"
    console.print(what, style=style)
    print_said(said, LONGEST)
    for name, text in verdict_lines(episode.row):
        print_line(name, text)
    if beside := _beside(episode):
        print_line("", beside, "dim")
    console.print()


def _beside(episode: StoredEpisode) -> str:
    """The session, the times and the cost of an episode."""
    row = episode.row
    parts = [f"session {episode.session}"] if episode.session is not None else []
    parts += [f"{name} {seconds:.2f} s" for name, seconds in row.get("_stateroom_times", {}).items()]
    parts += [f"cost {row['cost']:.3g}"] if "cost" in row else []
    return ", ".join(parts)


def verdict_lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Why an episode has its reward, or none, each with a name."""
    if "_ng_failure_class" in row:
        return [("error", str(row.get("error")))]
    parts = [("verdict", f"reward {number(row['reward'])}" + (f": {row['reason']}" if row.get("reason") else ""))]
    components = ", ".join(f"{name} {number(value)}" for name, value in (row.get("reward_components") or {}).items())
    return [*parts, *([("", components)] if components else [])]
