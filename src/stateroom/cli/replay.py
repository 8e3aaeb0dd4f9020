"""`stateroom replay`: check that an environment still does the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from stateroom.cli.options import AsJSON, EnvArgs, EnvOption, ExistingStore, RolloutTasks, env_args_of
from stateroom.cli.output import console, counted, print_json, shown_progress, table
from stateroom.cli.sessions import existing_store
from stateroom.environment import Environment
from stateroom.errors import NotFound
from stateroom.jsonl import read_lines
from stateroom.rollout import (
    Replay,
    ReplayDifference,
    RunFiles,
    default_store,
    environment_of_run,
    replay_rollouts,
    replay_session,
)
from stateroom.state import brief

MAX_ROWS = 10
"""Differences, and lines of a difference, that are shown; --json has all."""


class ReadCalls(StrEnum):
    """What to do with calls that changed nothing."""

    skip = "skip"
    check = "check"


def replay(
    target: Annotated[
        str, typer.Argument(metavar="SESSION|ROLLOUTS", help="A session's id, or a rollouts file.", show_default=False)
    ],
    env: EnvOption,
    env_arg: EnvArgs = None,
    input_file: RolloutTasks = None,
    store: ExistingStore = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Continue after a difference, and count them.")] = False,
    reads: Annotated[
        ReadCalls, typer.Option(help="Skip calls that changed nothing, or check those in the responses, too.")
    ] = ReadCalls.skip,
    json_output: AsJSON = False,
) -> None:
    """Run recorded calls again, and compare the results with the record.

    Each episode runs in a fresh session in memory, with the same task, random
    state, clock and call ids; nothing is written to the store. Outputs and
    states are compared, and the first difference is shown. If the store no
    longer has a row's session, the outputs in its response are compared.
    The rollouts may be NeMo Gym's own.
    External tools do not run: their results are taken from the log. Episodes
    that used states which others change are refused. What a person edited is
    copied from the log, and such an episode is named as not comparable.

    The exit code is 1 if something differs, or if nothing comparable could be
    replayed.

    Example: stateroom replay out/counter.jsonl --env counter --reads check

    Example: stateroom replay ID --env counter --store sqlite:///rooms.db --lenient
    """
    path = Path(target)
    environment = environment_of_run(env, RunFiles(path), env_args_of(env_arg))
    if path.is_file():
        replays = asyncio.run(_replay_file(environment, path, input_file, store, lenient, reads))
    elif store is None:
        raise NotFound(f"there is no rollouts file {target}; for a session, say with --store where it is")
    elif reads == ReadCalls.check:
        raise typer.BadParameter("a session has none on record; its rollouts have", param_hint="--reads")
    else:
        replays = [asyncio.run(_replay_session(environment, target, store, lenient))]
    if json_output:
        print_json({**_sums(replays), "episodes": [asdict(each) for each in replays]})
    else:
        _show(environment.name, replays, lenient)
    if any(each.differences for each in replays) or all(each.refused or each.edited for each in replays):
        raise typer.Exit(1)


async def _replay_session(environment: Environment[Any, Any], session: str, url: str, lenient: bool) -> Replay:
    async with existing_store(url) as store, shown_progress("replaying a session"):
        return await replay_session(environment, store, session, lenient=lenient)


async def _replay_file(
    environment: Environment[Any, Any],
    path: Path,
    tasks: Path | None,
    url: str | None,
    lenient: bool,
    reads: ReadCalls,
) -> list[Replay]:
    async with AsyncExitStack() as stack:
        store, files = None, RunFiles(path)
        if environment.state_type is not None and (url is not None or files.sessions.exists()):
            store = await stack.enter_async_context(existing_store(url or default_store(environment, files)))
        total = sum(1 for _ in read_lines(path))
        step = await stack.enter_async_context(shown_progress("replaying episodes", total))
        return await replay_rollouts(
            environment, path, store, tasks=tasks, lenient=lenient, reads=reads.value, on_row=step
        )


def _sums(replays: list[Replay]) -> dict[str, int]:
    return {
        "replayed": sum(each.refused is None for each in replays),
        "refused": sum(each.refused is not None for each in replays),
        "edited": sum(bool(each.edited) for each in replays),
        "differing": sum(bool(each.differences) for each in replays),
        "calls": sum(each.calls for each in replays),
        "reads": sum(each.reads for each in replays),
        "taken": sum(each.taken for each in replays),
        "left_out": sum(each.left_out for each in replays),
        "differences": sum(len(each.differences) for each in replays),
    }


def _show(name: str, replays: list[Replay], lenient: bool) -> None:
    found = _sums(replays)
    told = f"{counted(found['replayed'], 'episode', 'episodes')} of {name} replayed"
    verdict = f": {counted(found['differing'], 'differs', 'differ')}" if found["differing"] else ": all as on record"
    if found["edited"] == found["replayed"] and not found["differing"]:
        verdict = ""
    refused = f", {found['refused']:,} refused" if found["refused"] else ""
    style = "red" if found["differing"] else "green"
    console.print(Text.assemble((told, "bold"), (verdict if found["replayed"] else "", style), (refused, "red")))
    made = table("calls run again#", "reads#", "external, taken from the log#", "left out#", "differences#")
    made.add_row(*(f"{found[kind]:,}" for kind in ("calls", "reads", "taken", "left_out", "differences")))
    console.print(made)
    for each in [each for each in replays if each.edited][:MAX_ROWS]:
        told = f"{_where(each)}: edited {', '.join(each.edited)}; that was copied, and the episode is not comparable"
        console.print(told, style="yellow", soft_wrap=True)
    every = [(each, difference) for each in replays for difference in each.differences]
    for each, difference in every[:MAX_ROWS]:
        _show_difference(each, difference)
    if len(every) > MAX_ROWS:
        console.print(f"and {len(every) - MAX_ROWS:,} more; --json lists them all", style="dim")
    elif every and not lenient:
        console.print("The replay stopped there; --lenient continues.", style="dim")
    reasons = Counter(
        each.refused.replace(repr(each.session), "…") for each in replays if each.refused is not None
    ).most_common(MAX_ROWS)
    if reasons:
        made = table("refused#", "because")
        for reason, count in reasons:
            made.add_row(f"{count:,}", reason)
        console.print(made)


def _where(each: Replay) -> str:
    row = "" if each.task is None else f"task {each.task}, rollout {each.rollout}"
    return ", ".join(part for part in (row, f"session {each.session}" if each.session else "") if part)


def _show_difference(each: Replay, difference: ReplayDifference) -> None:
    what = "the seed" if difference.number == 0 else f"call {difference.number}, {difference.name}"
    given = "" if difference.number == 0 else f"({brief(difference.input)})"
    console.print(f"\n{_where(each)}: {what}{given}", style="bold", soft_wrap=True)
    if difference.recorded != difference.now:
        console.print(f"  recorded: {brief(difference.recorded)}", soft_wrap=True)
        console.print(f"       now: {brief(difference.now)}", soft_wrap=True)
    if difference.states:
        console.print("  state, recorded → now:")
        for line in difference.states[:MAX_ROWS]:
            console.print(f"    {line}", soft_wrap=True)
        if len(difference.states) > MAX_ROWS:
            console.print(f"    and {len(difference.states) - MAX_ROWS:,} more places", style="dim")
