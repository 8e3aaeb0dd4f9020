"""`stateroom migrate`: bring stored sessions to the newest schema."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Any

import typer

from stateroom.cli.output import console, counted, print_json, shown_progress, table
from stateroom.cli.run import make
from stateroom.cli.sessions import AsJSON, StoreURL, existing_store
from stateroom.environment import find_environment, registered
from stateroom.session.maintenance import Migrated, Migrator, kept_types
from stateroom.state import State, schema_of
from stateroom.store import Head

ROWS = 20
"""So many failures are shown; --json gives them all."""

TOLD = {
    "migrated": "migrated",
    "current": "of the newest version already",
    "ended": "ended: migrated whenever they are read",
    "in use": "in use: left for the next time",
    "foreign": "of an environment that is not known: say which with --env",
    "failed": "failed",
}


def migrate(
    store: StoreURL,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="The environment, as a registered name, module:Class or path.py:Class; can be given again. "
            "By default all that are registered."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and migrate everything, and write nothing.")] = False,
    json_output: AsJSON = False,
) -> None:
    """Bring all sessions of a store to the newest version of their states.

    Each session gets an entry with a snapshot in the new schema; nothing that
    is stored is changed. Sessions need not be migrated to be opened: that
    does it too. Doing it here shows beforehand whether all can be.

    It can be stopped and run again, and while servers are at work: one of
    older code refuses a session that was migrated.

    The command ends with code 1 if a session could not be migrated.

    Example: stateroom migrate --store sqlite:///rooms.db --env shop.py:ShopEnvironment --dry-run
    """
    types: dict[str, type[State]] = {}
    for name in env or registered():
        types |= kept_types(make(find_environment(name)))
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
