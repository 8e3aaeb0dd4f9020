"""`stateroom store`: maintenance of a store."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from stateroom.cli.options import AsJSON, OnlyEnv, StoreURL
from stateroom.cli.output import ID_LENGTH, console, counted, folded, print_json, shown_progress, size, table
from stateroom.cli.sessions import existing_store
from stateroom.errors import BadData, SessionError, StoreError, StoreUnavailable, UnknownSession
from stateroom.session import (
    SHARED,
    Copier,
    Cut,
    Retention,
    RetentionPolicy,
    Statistics,
    check_session,
    count_sessions,
    each_session,
    shared_environment,
    side_by_side,
)
from stateroom.store import HeadFilter, Size, Status, Store, open_store

app = typer.Typer(help="Check a store, measure it, prune it and copy it.", no_args_is_help=True)

ROWS = 20
"""Lines of a table that are shown; --json gives them all."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

STATUSES: tuple[Status, ...] = ("live", "closed", "expired")


def duration(text: str) -> float:
    """The seconds in a text such as 30d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise typer.BadParameter("write a number with s, m, h, d or w behind it, such as 12h or 30d")
    return float(found[1]) * UNITS[found[2]]


@app.command()
def check(store: StoreURL, json_output: AsJSON = False) -> None:
    """Check that every session can be read, and that nothing is missing or left over.

    The log of each session is whole, all in it can be decoded, and it leads
    to the newest state; its large values and what it was forked from are
    there; and nothing lies in the store that belongs to no session.

    Nothing is changed. The command ends with code 1 if something is wrong.

    Example: stateroom store check --store sqlite:///rooms.db
    """
    sessions, problems = asyncio.run(_check(store))
    if json_output:
        print_json({"sessions": sessions, "problems": [{"session": each, "what": what} for each, what in problems]})
    else:
        if problems:
            made = table("session!", "what is wrong")
            for session, what in problems:
                made.add_row(session or "(none)", what)
            console.print(made)
        wrong = counted(len(problems), "problem", "problems") if problems else "all is well"
        console.print(f"{counted(sessions, 'session', 'sessions')} checked: {wrong}")
    if problems:
        raise typer.Exit(1)


async def _check(url: str) -> tuple[int, list[tuple[str | None, str]]]:
    sessions = 0
    problems: list[tuple[str | None, str]] = []
    async with existing_store(url) as store, shown_progress("checking sessions") as step:
        async for head, found in each_session(store, lambda head: check_session(store, head)):
            sessions += 1
            problems += [(head.id, what) for what in found]
            step()
        problems += [(None, what) for what in await store.maintenance.orphans()]
    return sessions, problems


@app.command()
def stats(
    store: StoreURL,
    limit: Annotated[int, typer.Option(min=0, help="Show the N largest sessions.")] = 10,
    json_output: AsJSON = False,
) -> None:
    """Show how much is in a store: by kind, by environment, and the largest sessions.

    A session's size is that of its own entries, snapshots and large values;
    what a fork shares with its parent counts there.

    Example: stateroom store stats --store sqlite:///rooms.db --limit 3
    """
    found = asyncio.run(_count(store, limit))
    if json_output:
        print_json(_as_data(found))
        return
    made = table("in the store", "number#", "size#")
    for kind, measured in found.sizes.items():
        made.add_row(kind, f"{measured.rows:,}", size(measured.bytes))
    console.print(made)
    if found.sessions:
        made = table("environment", *(f"{status}#" for status in STATUSES))
        for environment, statuses in sorted(found.sessions.items()):
            made.add_row(environment, *(f"{statuses[status]:,}" for status in STATUSES))
        console.print()
        console.print(made)
    if found.largest:
        made = table("largest session!", "environment", "entries#", "size#")
        for head, measured in found.largest:
            made.add_row(folded(head.id, 2 * ID_LENGTH), head.environment, f"{measured.rows:,}", size(measured.bytes))
        console.print()
        console.print(made)


async def _count(url: str, top: int) -> Statistics:
    async with existing_store(url) as store, shown_progress("counting sessions") as step:
        return await count_sessions(store, now=time.time(), top=top, done=step)


def _as_data(found: Statistics) -> dict[str, Any]:
    return {
        "sizes": _sizes_data(found.sizes),
        "sessions": {
            environment: {status: statuses[status] for status in STATUSES}
            for environment, statuses in sorted(found.sessions.items())
        },
        "largest": [
            {
                "id": head.id,
                "environment": head.environment,
                "status": head.status(time.time()),
                "entries": measured.rows,
                "bytes": measured.bytes,
            }
            for head, measured in found.largest
        ],
    }


def _sizes_data(sizes: dict[str, Size]) -> dict[str, dict[str, int]]:
    return {kind: {"rows": measured.rows, "bytes": measured.bytes} for kind, measured in sizes.items()}


@app.command()
def sweep(store: StoreURL, json_output: AsJSON = False) -> None:
    """Remove the sessions that have expired, except those that a fork still reads.

    A server does this by itself.

    Example: stateroom store sweep --store sqlite:///rooms.db
    """
    removed = asyncio.run(_sweep(store))
    if json_output:
        print_json({"removed": removed})
    else:
        console.print(f"{counted(removed, 'expired session', 'expired sessions')} removed")


async def _sweep(url: str) -> int:
    async with existing_store(url) as store, shown_progress("sweeping"):
        return await store.sweep(time.time())


@app.command()
def prune(
    store: StoreURL,
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="Keep each session's last N revisions, at least 8, and remove the log before them."),
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="TIME", help="Apply --keep only to sessions unused for this long: 30d, 12h."
        ),
    ] = "0s",  # type: ignore[assignment]
    closed_older_than: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Remove sessions that were closed so long ago: 30d, 12h."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    json_output: AsJSON = False,
) -> None:
    """Cut off the past that is no longer needed.

    The newest state of every session and the revisions that are kept stay
    readable, with all that their rewinds and forks need. A log is cut at a
    snapshot, so more may be kept than --keep asks for. The task and the
    verdict always stay.

    What has gone is gone for good. It cannot be read, forked or gone back to,
    and its call ids are forgotten: such a call, made again, would run again.

    Example: stateroom store prune --store sqlite:///rooms.db --keep 100 --older-than 7d --dry-run

    Example: stateroom store prune --store sqlite:///rooms.db --closed-older-than 30d
    """
    if keep is None and closed_older_than is None:
        raise typer.BadParameter("say what may go, with one of them or both", param_hint="--keep, --closed-older-than")
    if keep is None and older_than:
        raise typer.BadParameter("it goes with --keep: how many revisions are to stay?", param_hint="--older-than")
    cuts = asyncio.run(_prune(store, RetentionPolicy(keep, older_than, closed_older_than), dry_run=dry_run))
    if json_output:
        print_json({"dry_run": dry_run, "cuts": [_cut_data(cut) for cut in cuts]})
    else:
        _show_cuts(cuts, dry_run=dry_run)


async def _prune(url: str, policy: RetentionPolicy, *, dry_run: bool) -> list[Cut]:
    async with existing_store(url) as store, shown_progress("looking at sessions") as step:
        retention = Retention(store, policy, time.time)
        cuts = []
        async for _, cut in retention.plan() if dry_run else retention.carry_out():
            cuts += [cut] if cut is not None else []
            step()
    return cuts


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


def _show_cuts(cuts: list[Cut], *, dry_run: bool) -> None:
    if cuts:
        made = table("session!", "environment", "would go" if dry_run else "has gone", "entries#")
        for cut in cuts[:ROWS]:
            made.add_row(folded(cut.head.id), cut.head.environment, _what_goes(cut), f"{cut.entries:,}")
        console.print(made)
    if len(cuts) > ROWS:
        console.print(f"and {len(cuts) - ROWS:,} more; --json lists them all", style="dim")
    gone = [cut for cut in cuts if not cut.in_use]
    entries = counted(sum(cut.entries for cut in gone), "entry", "entries")
    what = f"{entries} of {counted(len(gone), 'session', 'sessions')}"
    console.print(f"{what} would go; nothing was changed" if dry_run else f"{what} removed")


def _what_goes(cut: Cut) -> str:
    if cut.in_use:
        return "nothing: a worker holds it"
    return "all: it was closed" if cut.below is None else f"before revision {cut.below} of {cut.head.revision}"


@app.command()
def vacuum(store: StoreURL, json_output: AsJSON = False) -> None:
    """Give back the space that what was removed has left behind, and remove what belongs to no session.

    Example: stateroom store vacuum --store sqlite:///rooms.db
    """
    before, after = asyncio.run(_vacuum(store))
    if json_output:
        print_json({"before": _sizes_data(before), "after": _sizes_data(after)})
        return
    made = table("in the store", "number#", "size before#", "after#")
    for kind, measured in after.items():
        made.add_row(kind, f"{measured.rows:,}", size(before[kind].bytes), size(measured.bytes))
    console.print(made)


async def _vacuum(url: str) -> tuple[dict[str, Size], dict[str, Size]]:
    async with existing_store(url) as store, shown_progress("vacuuming"):
        before = await store.maintenance.sizes()
        await store.maintenance.vacuum()
        return before, await store.maintenance.sizes()


@app.command()
def copy(
    store: StoreURL,
    to: Annotated[str, typer.Option(help="The URL of the store to copy to, which is made if it is not there.")],
    session: Annotated[
        list[str] | None, typer.Option(help="Only this session, with those it was forked from; can be given again.")
    ] = None,
    env: OnlyEnv = None,
    json_output: AsJSON = False,
) -> None:
    """Copy sessions to another store, of any kind, and compare what has arrived with what was sent.

    Each session is copied as of one moment, after what it was forked from.
    The source may be in use meanwhile. Copying again brings the target up to
    date; a session that has gone on there is left alone.

    The command ends with code 1 if a session could not be copied.

    Example: stateroom store copy --store sqlite:///rooms.db --to redis://localhost:6379/0

    Example: stateroom store copy --store sqlite:///rooms.db --to "sqlite:///safe.db?compress=zstd&keys=env:KEYS"
    """
    if session and env is not None:
        raise typer.BadParameter("not together with --session", param_hint="--env")
    if store == to:
        raise typer.BadParameter("this is the store that is to be copied", param_hint="--to")
    copier, failed = asyncio.run(_copy(store, to, session or [], env))
    copied = copier.copied.values()
    entries, size_ = sum(each.entries for each in copied), sum(each.bytes for each in copied)
    if json_output:
        failures = [{"session": each, "error": error} for each, error in failed]
        print_json({"sessions": len(copied), "entries": entries, "bytes": size_, "failed": failures})
    else:
        if failed:
            made = table("session!", "not copied because")
            for each, error in failed[:ROWS]:
                made.add_row(each, error)
            console.print(made)
            if len(failed) > ROWS:
                console.print(f"and {len(failed) - ROWS:,} more; --json lists them all", style="dim")
        told = f"{counted(len(copied), 'session', 'sessions')} copied and compared"
        console.print(f"{told}: {counted(entries, 'entry', 'entries')}, {size(size_)}")
    if failed:
        raise typer.Exit(1)


async def _copy(
    url: str, to: str, sessions: list[str], environment: str | None
) -> tuple[Copier, list[tuple[str, str]]]:
    """Copy what was chosen; the copier, and the sessions that could not be copied, each with the reason."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(existing_store(url))
        for session in sessions:
            await source.head(session)  # a mistake in an id ends it here, before there is a target
        chosen = sessions or await _ids(source, environment)
        copier = Copier(source, await stack.enter_async_context(open_store(to)))
        failed = []

        async def attempt(session: str) -> str | None:
            try:
                await copier.copy(session)
            except StoreUnavailable:
                raise
            except (StoreError, SessionError, BadData) as error:
                gone = isinstance(error, UnknownSession) and error.session == session
                return None if gone else str(error)
            return None

        async with shown_progress("copying sessions", len(chosen)) as step:
            async for session, error in side_by_side(chosen, attempt):
                failed += [(session, error)] if error is not None else []
                step()
    return copier, failed


async def _ids(store: Store, environment: str | None) -> list[str]:
    """All sessions, or those of an environment with what they share; the oldest first."""
    wanted = (
        [None] if environment is None else [environment, *(shared_environment(each, environment) for each in SHARED)]
    )
    ids = [head.id for each in wanted async for page in store.pages(HeadFilter(environment=each)) for head in page]
    return ids[::-1]
