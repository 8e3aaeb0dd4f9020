"""`stateroom export`: the episodes of a run for a trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, counted, errors, print_json
from stateroom.cli.show import RunPath
from stateroom.rollout import ProgressBar, StoredRun
from stateroom.training import FORMATS, AdvantageMethod, To, export_rows, write_table


def export(
    run: RunPath,
    to: Annotated[
        To,
        typer.Option(
            help="sft: solved episodes as messages. dpo: pairs of continuations of one state. grpo: tokens with "
            "advantages. verl: tasks. jsonl: all of it."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file, .jsonl or .parquet; by default beside the run.", show_default=False
        ),
    ] = None,
    how: Annotated[
        AdvantageMethod,
        typer.Option("--advantages", help="grpo and jsonl: how advantages are estimated; vine and tree of trees."),
    ] = "grpo",
    min_reward: Annotated[
        float | None,
        typer.Option(
            help="sft: only episodes with at least this reward; by default the solved ones.", show_default=False
        ),
    ] = None,
    json_output: AsJSON = False,
) -> None:
    """Export the episodes of a run in the format of a trainer; the exit code is 1 if there is none.

    Failed episodes, and failed branches of trees, are left out and counted.

    Example: stateroom export rollouts/counter.jsonl --to sft

    Preference pairs from the states of trees: stateroom export rollouts/tree.jsonl --to dpo --output pairs.parquet

    Tokens with the advantage of each: stateroom export rollouts/tree.jsonl --to grpo --advantages vine
    """
    found = StoredRun.find(run)
    path = output or found.files.rollouts.with_name(found.files.rollouts.stem + ENDINGS[to])
    bar = ProgressBar(f"export to {path.name}")
    rows = export_rows(found, to, how=how, min_reward=min_reward)
    bar.start()
    try:
        written = asyncio.run(write_table(path, FORMATS[to].columns, rows, bar.advance))
    finally:
        bar.stop()
    failed = sum(episode.failed for episode in found.episodes())
    if failed:
        left_out = f"{counted(failed, 'failed episode or branch is', 'failed episodes or branches are')} left out"
        errors.print(f"{left_out}; see {found.files.failures}", style="yellow", soft_wrap=True)
    if json_output:
        print_json({"rows": written, "failed": failed, "file": str(path) if written else None})
    elif written:
        console.print(f"{counted(written, 'row', 'rows')} in {path}", soft_wrap=True)
    else:
        errors.print(f"nothing to export: {NOTHING[to]}", style="red", soft_wrap=True)
    if not written:
        raise typer.Exit(1)


ENDINGS: dict[To, str] = {
    "sft": "_sft.jsonl",
    "dpo": "_dpo.jsonl",
    "grpo": "_grpo.jsonl",
    "verl": "_verl.parquet",
    "jsonl": "_training.jsonl",
}
"""How the name of a format's file ends, by default."""

NOTHING: dict[To, str] = {
    "sft": "no episode has a reward that is high enough; --min-reward sets another bound",
    "dpo": "no two continuations of one state have different rewards",
    "grpo": "the run has no finished episode",
    "verl": "the run has no tasks",
    "jsonl": "the run has no finished episode",
}
"""Why a format may have no rows."""
