"""`stateroom store` and `stateroom migrate`: maintain a store."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Annotated, Any, get_args

import typer
from msgspec import to_builtins

from stateroom.cli.command import Commands, Output
from stateroom.cli.options import OnlyEnv, StoreOptions
from stateroom.cli.output import ID_LENGTH, MAX_ROWS, console, counted, folded, print_table, shown_progress, size
from stateroom.environment import make_environment, registered
from stateroom.errors import BadData, InvalidOption, SessionError, StoreError, StoreUnavailable, UnknownSession
from stateroom.session import (
    SHARED,
    Copier,
    Cut,
    Migrated,
    Migrator,
    Retention,
    RetentionPolicy,
    Statistics,
    check_session,
    count_sessions,
    each_session,
    kept_types,
    shared_environment,
    side_by_side,
)
from stateroom.state import State, schema_of
from stateroom.store import Head, HeadFilter, Status, Store, open_store

app = Commands(help="Check, measure, prune and copy a store.")

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def duration(text: str) -> float:
    """Parse a duration such as 30d into seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise typer.BadParameter("give a number followed by s, m, h, d or w, such as 12h or 30d")
    return float(match[1]) * UNITS[match[2]]


@app.command()
async def check(options: StoreOptions) -> Output:
    """Check that every session is readable and complete, and that nothing is left over.

    The log of each session must be complete and readable, and lead to the
    newest state; its large values and its parent must exist; and everything in
    the store must belong to a session.

    The store does not change. The exit code is 1 if there is a problem.

    Example: stateroom store check --store sqlite:///rooms.db
    """
    sessions = 0
    problems: list[tuple[str | None, str]] = []
    async with options.open() as store, shown_progress("checking sessions") as step:
        async for head, faults in each_session(store, lambda head: check_session(store, head)):
            sessions += 1
            problems += [(head.id, what) for what in faults]
            step()
        problems += [(None, what) for what in await store.maintenance.orphans()]

    def data() -> dict[str, Any]:
        return {"sessions": sessions, "problems": [{"session": session, "what": what} for session, what in problems]}

    def show() -> None:
        print_table(("session!", "problem"), [(session or "(none)", what) for session, what in problems])
        wrong = counted(len(problems), "problem", "problems") if problems else "all is well"
        console.print(f"{counted(sessions, 'session', 'sessions')} checked: {wrong}")

    return Output(data, show, 1 if problems else 0)


@app.command()
async def stats(
    options: StoreOptions,
    limit: Annotated[int, typer.Option(min=0, help="Show the N largest sessions.")] = 10,
) -> Output:
    """Show the size of a store by kind, by environment, and for the largest sessions.

    The size of a session covers its own entries, snapshots and large values;
    data that a fork shares with its parent counts for the parent.

    Example: stateroom store stats --store sqlite:///rooms.db --limit 3
    """
    async with options.open() as store, shown_progress("counting sessions") as step:
        statistics = await count_sessions(store, now=time.time(), top=limit, done=step)
    return Output(lambda: _statistics_data(statistics), lambda: _print_statistics(statistics))


def _statistics_data(statistics: Statistics) -> dict[str, Any]:
    return {
        "sizes": to_builtins(statistics.sizes),
        "sessions": {
            environment: {status: by_status[status] for status in get_args(Status)}
            for environment, by_status in sorted(statistics.sessions.items())
        },
        "largest": [
            {
                "id": head.id,
                "environment": head.environment,
                "status": head.status(time.time()),
                "entries": measured.rows,
                "bytes": measured.bytes,
            }
            for head, measured in statistics.largest
        ],
    }


def _print_statistics(statistics: Statistics) -> None:
    kinds = [(kind, measured.rows, size(measured.bytes)) for kind, measured in statistics.sizes.items()]
    print_table(("in the store", "number#", "size#"), kinds)
    if statistics.sessions:
        console.print()
        statuses = get_args(Status)
        counts = [(name, *map(by_status.__getitem__, statuses)) for name, by_status in statistics.sessions.items()]
        print_table(("environment", *(f"{status}#" for status in statuses)), sorted(counts))
    if statistics.largest:
        console.print()
        rows = [
            (folded(head.id, 2 * ID_LENGTH), head.environment, measured.rows, size(measured.bytes))
            for head, measured in statistics.largest
        ]
        print_table(("largest session!", "environment", "entries#", "size#"), rows)


@app.command()
async def sweep(options: StoreOptions) -> Output:
    """Remove expired sessions, except those that a fork still reads.

    A running server does this automatically.

    Example: stateroom store sweep --store sqlite:///rooms.db
    """
    async with options.open() as store, shown_progress("sweeping"):
        removed = await store.sweep(time.time())
    summary = f"{counted(removed, 'expired session', 'expired sessions')} removed"
    return Output(lambda: {"removed": removed}, lambda: console.print(summary))


@app.command()
async def prune(
    options: StoreOptions,
    keep: Annotated[
        int | None,
        typer.Option(
            min=0, help="Keep the last N revisions of each session, at least 8, and remove the log before them."
        ),
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Apply --keep only to sessions unused for this long, such as 30d or 12h.",
        ),
    ] = "0s",  # type: ignore[assignment]
    closed_older_than: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Remove sessions closed for this long, such as 30d or 12h."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> Output:
    """Remove history that you no longer need.

    The newest state of every session and the kept revisions stay readable,
    with everything that their rewinds and forks need. A log is cut at a
    snapshot, so more revisions than --keep may stay. The task and the verdict
    always stay.

    This cannot be undone. You cannot read, fork or rewind to removed
    revisions, and a call with a removed call id would run again.

    Example: stateroom store prune --store sqlite:///rooms.db --keep 100 --older-than 7d --dry-run

    Example: stateroom store prune --store sqlite:///rooms.db --closed-older-than 30d
    """
    if keep is None and closed_older_than is None:
        raise InvalidOption("keep", "give this or --closed-older-than, or both")
    if keep is None and older_than:
        raise InvalidOption("older_than", "requires --keep, the number of revisions to keep")
    async with options.open() as store, shown_progress("looking at sessions") as step:
        retention = Retention(store, RetentionPolicy(keep, older_than, closed_older_than), time.time)
        cuts: list[Cut] = []
        async for _, cut in retention.plan() if dry_run else retention.carry_out():
            cuts += [cut] if cut is not None else []
            step()
    return Output(
        lambda: {"dry_run": dry_run, "cuts": [*map(_cut_data, cuts)]}, lambda: _print_cuts(cuts, dry_run=dry_run)
    )


def _cut_data(cut: Cut) -> dict[str, Any]:
    return {
        "session": cut.head.id,
        "environment": cut.head.environment,
        "removed": cut.below is None,
        "before": cut.below,
        "revision": cut.head.revision,
        "entries": cut.entries,
        "in_use": cut.in_use,
    }


def _print_cuts(cuts: list[Cut], *, dry_run: bool) -> None:
    columns = ("session!", "environment", "would be removed" if dry_run else "removed", "entries#")
    rows = [(folded(cut.head.id), cut.head.environment, _what_goes(cut), cut.entries) for cut in cuts]
    print_table(columns, rows, most=MAX_ROWS)
    gone = [cut for cut in cuts if not cut.in_use]
    entries = counted(sum(cut.entries for cut in gone), "entry", "entries")
    what = f"{entries} of {counted(len(gone), 'session', 'sessions')}"
    console.print(f"{what} would be removed; nothing was changed" if dry_run else f"{what} removed")


def _what_goes(cut: Cut) -> str:
    if cut.in_use:
        return "nothing: in use by a worker"
    return "all: closed" if cut.below is None else f"before revision {cut.below} of {cut.head.revision}"


@app.command()
async def vacuum(options: StoreOptions) -> Output:
    """Reclaim the space of removed data, and remove data that belongs to no session.

    Example: stateroom store vacuum --store sqlite:///rooms.db
    """
    async with options.open() as store, shown_progress("vacuuming"):
        before = await store.maintenance.sizes()
        await store.maintenance.vacuum()
        after = await store.maintenance.sizes()
    rows = [(kind, now.rows, size(before[kind].bytes), size(now.bytes)) for kind, now in after.items()]
    return Output(
        lambda: to_builtins({"before": before, "after": after}),
        lambda: print_table(("in the store", "number#", "size before#", "after#"), rows),
    )


@app.command()
async def copy(
    options: StoreOptions,
    to: Annotated[str, typer.Option(help="The URL of the target store, which is created if needed.")],
    session: Annotated[
        list[str] | None, typer.Option(help="Copy only this session and its parents. Repeatable.")
    ] = None,
    env: OnlyEnv = None,
) -> Output:
    """Copy sessions to another store of any kind, and verify the copies.

    Each session is copied as of one moment, after its parent. The source may
    be in use meanwhile. Copying again updates the target, but skips sessions
    that have changed there.

    The exit code is 1 if a session could not be copied.

    Example: stateroom store copy --store sqlite:///rooms.db --to redis://localhost:6379/0

    Example: stateroom store copy --store sqlite:///rooms.db --to "sqlite:///safe.db?compress=zstd&keys=env:KEYS"
    """
    if session and env is not None:
        raise InvalidOption("env", "cannot be combined with --session")
    if options.store == to:
        raise InvalidOption("to", "the target is the store to copy; give another URL")
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(options.open())
        for id in session or ():
            await source.head(id)  # so a wrong id fails before the target is created
        chosen = session or await _ids(source, env)
        copier = Copier(source, await stack.enter_async_context(open_store(to)))
        failed = await _copy(copier, chosen)
    copied = copier.copied.values()
    entries, bytes_ = sum(session.entries for session in copied), sum(session.bytes for session in copied)

    def data() -> dict[str, Any]:
        failures = [{"session": session, "error": error} for session, error in failed]
        return {"sessions": len(copied), "entries": entries, "bytes": bytes_, "failed": failures}

    def show() -> None:
        print_table(("session!", "why it was not copied"), failed, most=MAX_ROWS)
        sessions = f"{counted(len(copied), 'session', 'sessions')} copied and compared"
        console.print(f"{sessions}: {counted(entries, 'entry', 'entries')}, {size(bytes_)}")

    return Output(data, show, 1 if failed else 0)


async def _copy(copier: Copier, sessions: list[str]) -> list[tuple[str, str]]:
    """Copy sessions; returns those that could not be copied, with the reasons."""

    async def attempt(session: str) -> str | None:
        try:
            await copier.copy(session)
        except StoreUnavailable:
            raise
        except (StoreError, SessionError, BadData) as error:
            gone = isinstance(error, UnknownSession) and error.session == session
            return None if gone else str(error)
        return None

    failed = []
    async with shown_progress("copying sessions", len(sessions)) as step:
        async for session, error in side_by_side(sessions, attempt):
            failed += [(session, error)] if error is not None else []
            step()
    return failed


async def _ids(store: Store, environment: str | None) -> list[str]:
    """All sessions, or those of an environment with their shared states; oldest first."""
    wanted = (
        [None] if environment is None else [environment, *(shared_environment(scope, environment) for scope in SHARED)]
    )
    ids = [head.id for name in wanted async for page in store.pages(HeadFilter(environment=name)) for head in page]
    return ids[::-1]


OUTCOMES = {
    "migrated": "migrated",
    "current": "already current",
    "ended": "ended: migrated when read",
    "in use": "in use: run this command again later",
    "foreign": "unknown environment: name it with --env",
    "failed": "failed",
}


def migrate(
    options: StoreOptions,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            help="The environment: a registered name, module:Class or path.py:Class; by default all registered ones. "
            "Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Migrate in memory only, without writing.")] = False,
) -> Output:
    """Migrate all sessions of a store to the newest schema of their state.

    Each session gets an entry with a snapshot in the new schema; existing
    entries do not change. This command is optional, since a session is also
    migrated when it is opened, but it shows beforehand whether all can be.

    You can interrupt and repeat it, even while servers run. A server with
    older code refuses migrated sessions.

    The exit code is 1 if a session could not be migrated.

    Example: stateroom migrate --store sqlite:///rooms.db --env shop.py:ShopEnvironment --dry-run
    """
    types: dict[str, type[State]] = {}
    for name in env or registered():
        types |= kept_types(make_environment(name))
    sessions = asyncio.run(_migrate(options, types, dry_run=dry_run))
    outcomes = Counter(migration.outcome for _, migration in sessions)
    failed = [(head.id, migration.why) for head, migration in sessions if migration.outcome == "failed"]

    def data() -> dict[str, Any]:
        return {
            "dry_run": dry_run,
            "sessions": len(sessions),
            "outcomes": dict(outcomes),
            "versions": {environment: schema_of(kind).version for environment, kind in types.items()},
            "failed": [{"session": session, "error": why} for session, why in failed],
        }

    def show() -> None:
        _print_versions(sessions, types)
        if failed:
            console.print()
            print_table(("session!", "why it cannot be migrated"), failed, most=MAX_ROWS)
        summary = f"{counted(outcomes['migrated'], 'session', 'sessions')} of {len(sessions):,}"
        console.print(f"{summary} would be migrated; nothing was changed" if dry_run else f"{summary} migrated")

    return Output(data, show, 1 if failed else 0)


async def _migrate(
    options: StoreOptions, types: dict[str, type[State]], *, dry_run: bool
) -> list[tuple[Head, Migrated]]:
    async with options.open() as store, shown_progress("migrating sessions") as step:
        migrator = Migrator(store, types, time.time)
        sessions = []
        async for session in migrator.plan() if dry_run else migrator.carry_out():
            sessions.append(session)
            step()
        return sessions


def _print_versions(sessions: list[tuple[Head, Migrated]], types: dict[str, type[State]]) -> None:
    kinds = Counter((head.environment, migration.version or 0, migration.outcome) for head, migration in sessions)
    rows = []
    for (environment, version, outcome), count in sorted(kinds.items()):
        newest = str(schema_of(types[environment]).version) if environment in types else ""
        rows.append((environment, str(version or ""), newest, count, OUTCOMES[outcome]))
    print_table(("environment", "from#", "to#", "sessions#", ""), rows)
