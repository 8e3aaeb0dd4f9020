"""`stateroom migrate`: migrate stored sessions to the newest schema."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Any

import typer

from stateroom.cli.options import AsJSON, StoreURL
from stateroom.cli.output import console, counted, print_json, shown_progress, table
from stateroom.cli.sessions import existing_store
from stateroom.environment import make_environment, registered
from stateroom.session import Migrated, Migrator, kept_types
from stateroom.state import State, schema_of
from stateroom.store import Head

ROWS = 20
"""Failures that are shown; --json has all."""

TOLD = {
    "migrated": "migrated",
    "current": "current already",
    "ended": "ended: migrated when they are read",
    "in use": "in use: run this again later",
    "foreign": "of an unknown environment: name it with --env",
    "failed": "failed",
}


def migrate(
    store: StoreURL,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            help="The environment, as a registered name, module:Class or path.py:Class; by default all that are "
            "registered. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Migrate everything in memory, and write nothing.")
    ] = False,
    json_output: AsJSON = False,
) -> None:
    """Migrate all sessions of a store to the newest schema of their states.

    Each session gets an entry with a snapshot in the new schema; what is
    stored does not change. This is optional: a session is also migrated when
    it is opened. Here you see beforehand whether all can be.

    You can stop it and run it again, also while servers run: a server with
    older code refuses a session that was migrated.

    The exit code is 1 if a session could not be migrated.

    Example: stateroom migrate --store sqlite:///rooms.db --env shop.py:ShopEnvironment --dry-run
    """
    types: dict[str, type[State]] = {}
    for name in env or registered():
        types |= kept_types(make_environment(name))
    found = asyncio.run(_migrate(store, types, dry_run))
    failed = [(head, each) for head, each in found if each.outcome == "failed"]
    if json_output:
        print_json(_as_data(found, types, dry_run))
    else:
        _show(found, types, dry_run)
    if failed:
        raise typer.Exit(1)


async def _migrate(url: str, types: dict[str, type[State]], dry_run: bool) -> list[tuple[Head, Migrated]]:
    async with existing_store(url) as store, shown_progress("migrating sessions") as step:
        migrator = Migrator(store, types, time.time)
        found = []
        async for each in migrator.plan() if dry_run else migrator.carry_out():
            found.append(each)
            step()
        return found


def _show(found: list[tuple[Head, Migrated]], types: dict[str, type[State]], dry_run: bool) -> None:
    made = table("environment", "from#", "to#", "sessions#", "")
    kinds = Counter((head.environment, each.version or 0, each.outcome) for head, each in found)
    for (environment, version, outcome), number in sorted(kinds.items()):
        newest = str(schema_of(types[environment]).version) if environment in types else ""
        made.add_row(environment, str(version or ""), newest, f"{number:,}", TOLD[outcome])
    if found:
        console.print(made)
    failed = [(head, each) for head, each in found if each.outcome == "failed"]
    if failed:
        reasons = table("session!", "cannot be migrated because")
        for head, each in failed[:ROWS]:
            reasons.add_row(head.id, each.why)
        console.print()
        console.print(reasons)
        if len(failed) > ROWS:
            console.print(f"and {len(failed) - ROWS:,} more; --json lists them all", style="dim")
    migrated = sum(each.outcome == "migrated" for _, each in found)
    told = f"{counted(migrated, 'session', 'sessions')} of {len(found):,}"
    console.print(f"{told} would be migrated; nothing was changed" if dry_run else f"{told} migrated")


def _as_data(found: list[tuple[Head, Migrated]], types: dict[str, type[State]], dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "sessions": len(found),
        "outcomes": dict(Counter(each.outcome for _, each in found)),
        "versions": {environment: schema_of(kind).version for environment, kind in types.items()},
        "failed": [{"session": head.id, "error": each.why} for head, each in found if each.outcome == "failed"],
    }
