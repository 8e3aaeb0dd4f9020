"""`stateroom sessions`: look into a store, and speak to the agents in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from msgspec import to_builtins
from rich.text import Text

from stateroom.agent import ThreadEnvironment, Threads, Utterance, transcript as read_transcript
from stateroom.cli.options import AsJSON, EnvArgs, OnlyEnv, StoreURL, env_args_of
from stateroom.cli.output import (
    ID_LENGTH,
    asides,
    console,
    counted,
    folded,
    print_hanging,
    print_json,
    print_line,
    print_said,
    print_state,
    table,
    when,
)
from stateroom.environment import Environment, find_environment, make_environment, registered
from stateroom.errors import NotFound
from stateroom.session import (
    SHARED_IDS,
    AgentStatus,
    History,
    LogEntry,
    Session,
    Sessions,
    SessionSummary,
    Transcript,
    entry_data,
    entry_line,
)
from stateroom.state import ChangeData, differences, lines
from stateroom.store import Head, HeadFilter, Order, Store, open_store, without_secrets

app = typer.Typer(help="Look at the sessions in a store, and speak to their agents.", no_args_is_help=True)

SessionID = Annotated[str, typer.Argument(help="The session's id.", show_default=False)]
EnvSpec = Annotated[
    str | None,
    typer.Option(
        "--env", "-e", help="The session's environment, module:Class or path.py:Class, if it is not registered."
    ),
]


@app.command("list")
def list_sessions(
    store: StoreURL,
    env: OnlyEnv = None,
    everything: Annotated[bool, typer.Option("--all", help="Worlds and shared states too.")] = False,
    phase: Annotated[str | None, typer.Option(help="Only sessions whose agent is in this phase, such as done.")] = None,
    order: Annotated[Order, typer.Option(help="What comes first; by reward, only sessions with a verdict.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="Show at most N.")] = 20,
    json_output: AsJSON = False,
) -> None:
    """List sessions, the newest first.

    Example: stateroom sessions list --store sqlite:///rooms.db

    Example: stateroom sessions list --store sqlite:///rooms.db --phase waiting_feedback
    """
    heads = asyncio.run(_heads(store, env, everything, phase, order, limit))
    if json_output:
        print_json(to_builtins([SessionSummary.of(head, time.time()) for head in heads]))
        return
    if not heads:
        console.print("no sessions")
        return
    sessions = [head for head in heads if not _is_shared(head)]
    if sessions:
        made = table("session!", "environment", "status", "revision#", "created (UTC)!")
        for head in sessions:
            status, created = head.status(time.time()), when(head.created)
            made.add_row(folded(head.id), head.environment, status, str(head.revision), created)
            if head.parent:
                made.add_row(f"└ {folded(head.parent)}", "forked at", "", str(head.parent_revision), style="dim")
        console.print(made)
    if shared := [head for head in heads if _is_shared(head)]:
        made = table("world or shared state!", "revision#", "created (UTC)!")
        for head in shared:
            made.add_row(folded(head.id, 2 * ID_LENGTH), str(head.revision), when(head.created))
        if sessions:
            console.print()
        console.print(made)
    if len(heads) == limit:
        console.print(f"the first {limit}; --limit shows more", style="dim")


@app.command()
def show(
    session: SessionID,
    store: StoreURL,
    at: Annotated[int | None, typer.Option(min=1, help="The revision to show; by default the newest.")] = None,
    diff: Annotated[int | None, typer.Option(min=1, help="Show what differs from this revision.")] = None,
    json_output: AsJSON = False,
) -> None:
    """Show a session's state and where its agent stands, at any revision, or what differs between two.

    Example: stateroom sessions show ID --store sqlite:///rooms.db --at 3

    Example: stateroom sessions show ID --store sqlite:///rooms.db --at 5 --diff 3
    """
    head, state, agent, older = asyncio.run(_states(store, session, at, diff))
    revision = at or head.revision
    changes = differences(older, state) if diff else None
    if json_output:
        shown = {"differences": changes} if diff else {"state": state}
        summary = to_builtins(SessionSummary.of(head, time.time()))
        print_json({**summary, "at": revision, **_standing(agent), **shown})
        return
    what = f" of {head.environment}, {head.status(time.time())}, revision {revision} of {head.revision}"
    console.print(Text.assemble((head.id, "bold"), what), soft_wrap=True)
    _print_standing(agent)
    if changes is None:
        print_state(state)
    else:
        console.print(f"since revision {diff}:" + ("" if changes else " nothing changed"))
        for line in lines(changes):
            console.print(f"  {line}", soft_wrap=True)


@app.command()
def log(session: SessionID, store: StoreURL, json_output: AsJSON = False) -> None:
    """Show everything that happened in a session, with what each step changed.

    Example: stateroom sessions log ID --store sqlite:///rooms.db
    """
    steps = asyncio.run(read_log(store, session))
    if json_output:
        print_json([entry_data(entry, changes) for entry, changes in steps])
    else:
        print_log(steps)


@app.command()
def transcript(session: SessionID, store: StoreURL, json_output: AsJSON = False) -> None:
    """Show the transcript of a session: messages of the user and the agent, tool calls and their results.

    Example: stateroom sessions transcript ID --store sqlite:///rooms.db
    """
    said, agent = asyncio.run(_said(store, session))
    if json_output:
        print_json({**_standing(agent), "said": [to_builtins(each) for each in said]})
        return
    for each in said:
        print_said((item, ()) for item in each.items)
        if each.reason:
            print_line("", each.reason, "dim")
    _print_standing(agent)


@app.command()
def answer(
    session: SessionID,
    text: Annotated[str, typer.Argument(help="The answer to its agent's question.", show_default=False)],
    store: StoreURL,
    env: EnvSpec = None,
    env_arg: EnvArgs = None,
    json_output: AsJSON = False,
) -> None:
    """Answer the question of an agent that waits. The next process that runs the agent continues with this answer.

    Example: stateroom sessions answer ID yes --store sqlite:///rooms.db
    """

    async def tell() -> AgentStatus:
        async with _threads(store, session, env, env_arg) as threads:
            return await (await threads.sessions.open(session)).agent.answer(text)

    _show_standing(asyncio.run(tell()), json_output)


@app.command()
def cancel(
    session: SessionID,
    store: StoreURL,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    env: EnvSpec = None,
    env_arg: EnvArgs = None,
    json_output: AsJSON = False,
) -> None:
    """Cancel what a session's agent is doing. The process that runs it stops before its next step.

    Example: stateroom sessions cancel ID --store sqlite:///rooms.db --reason "it takes too long"
    """

    async def end() -> AgentStatus:
        async with _threads(store, session, env, env_arg) as threads:
            return await threads.cancel(session, reason)

    _show_standing(asyncio.run(end()), json_output)


Steps = Annotated[int, typer.Option(min=1, help="How many steps.")]


@app.command()
def undo(
    session: SessionID,
    store: StoreURL,
    steps: Steps = 1,
    env: EnvSpec = None,
    env_arg: EnvArgs = None,
    json_output: AsJSON = False,
) -> None:
    """Take back the last steps of a session: calls, edits, and messages with what the agent did about them.

    Example: stateroom sessions undo ID --store sqlite:///rooms.db --steps 2
    """
    _travel("undone", Session.undo, session, store, steps, env, env_arg, json_output)


@app.command()
def redo(
    session: SessionID,
    store: StoreURL,
    steps: Steps = 1,
    env: EnvSpec = None,
    env_arg: EnvArgs = None,
    json_output: AsJSON = False,
) -> None:
    """Do again what was undone last, unless something else was done since.

    Example: stateroom sessions redo ID --store sqlite:///rooms.db
    """
    _travel("redone", Session.redo, session, store, steps, env, env_arg, json_output)


def _travel(
    done: str,
    travel: Callable[[Session[Any], int], Awaitable[int]],
    session: str,
    store: str,
    steps: int,
    env: str | None,
    env_arg: list[str] | None,
    json_output: bool,
) -> None:
    async def go() -> tuple[int, int]:
        async with _threads(store, session, env, env_arg) as threads:
            opened = await threads.sessions.open(session)
            return await travel(opened, steps), opened.revision

    made, revision = asyncio.run(go())
    if json_output:
        print_json({"steps": made, "revision": revision})
    else:
        console.print(f"{counted(made, 'step', 'steps')} {done}; the session is at revision {revision}")


def print_log(steps: list[tuple[LogEntry, list[ChangeData]]]) -> None:
    """A log as a readable transcript with state changes."""
    for entry, changes in steps:
        label = Text.assemble(f"{entry.revision:>4}  ", (f"{entry.kind:<10} ", "bold"))
        print_hanging(label, entry_line(entry), wrap=console.is_terminal)
        for line in asides(entry):
            print_hanging(Text(" " * 18), line, "dim", wrap=console.is_terminal)
        for line in lines(changes):
            print_hanging(Text(" " * 18), line, "green", wrap=console.is_terminal)


async def read_log(store_url: str, session: str) -> list[tuple[LogEntry, list[ChangeData]]]:
    """The entries of a session, each with what it changed."""
    async with existing_store(store_url) as store:
        return [step async for step in Transcript(store, session).read()]


def existing_store(url: str) -> AbstractAsyncContextManager[Store]:
    """The store of a URL; one on this disk that is not there is a mistake, and not made: there is nothing in it."""
    check_exists(url)
    return open_store(url)


def check_exists(url: str) -> None:
    """Raise `NotFound` if a store on this disk is not there."""
    for scheme, what in (("sqlite:///", "file"), ("file://", "folder")):
        path = Path(unquote(url.removeprefix(scheme).partition("?")[0]))
        if url.startswith(scheme) and path.name and not path.exists():
            raise NotFound(f"there is no store {without_secrets(url)}: the {what} {path} does not exist")


async def _heads(
    store_url: str, env: str | None, everything: bool, phase: str | None, order: Order, limit: int
) -> list[Head]:
    """The first heads of an environment, or of all; with `everything` also those of worlds and shared states."""
    listed = HeadFilter(environment=None if everything else env, phase=phase)
    found: list[Head] = []
    async with existing_store(store_url) as store:
        async for page in store.pages(listed, order):
            wanted = page if everything else [head for head in page if not _is_shared(head)]
            found += [head for head in wanted if env in (None, head.environment.partition(":")[0])]
            if len(found) >= limit:
                break
    return found[:limit]


def _is_shared(head: Head) -> bool:
    """Whether this is a world or a shared state, and no episode's session."""
    return head.id.startswith(SHARED_IDS)


async def _states(store_url: str, session: str, at: int | None, diff: int | None) -> tuple[Head, Any, AgentStatus, Any]:
    async with existing_store(store_url) as store:
        history = History(store)
        head = await store.head(session)
        document = await history.document(session, at)
        older = (await history.document(session, diff)).state if diff else None
        return head, document.state, document.progress.agent, older


async def _said(store_url: str, session: str) -> tuple[list[Utterance], AgentStatus]:
    async with existing_store(store_url) as store:
        document = await History(store).document(session)
        return await read_transcript(store, session), document.progress.agent


@asynccontextmanager
async def _threads(store_url: str, session: str, env: str | None, env_arg: list[str] | None) -> AsyncIterator[Threads]:
    """The sessions of the environment that a session is of, which alone can change it."""
    async with existing_store(store_url) as store:
        environment = _environment((await store.head(session)).environment, env)
        sessions = Sessions[Any](make_environment(environment, env_args_of(env_arg)), store)
        try:
            yield Threads(sessions)
        finally:
            await sessions.stop()


def _environment(name: str, env: str | None) -> type[Environment[Any, Any]]:
    if env is not None:
        return find_environment(env)
    if name == ThreadEnvironment.name:
        return ThreadEnvironment
    if name not in registered():
        raise NotFound(f"the session is of {name}, which is not registered here: say with --env where it is")
    return find_environment(name)


def _standing(agent: AgentStatus) -> dict[str, Any]:
    return {"agent": {"phase": agent.phase, "question": agent.question}}


def _show_standing(agent: AgentStatus, json_output: bool) -> None:
    if json_output:
        print_json(_standing(agent))
    else:
        _print_standing(agent)


def _print_standing(agent: AgentStatus) -> None:
    """Where an agent stands; nothing if there was never any."""
    if agent.said:
        asked = "" if agent.question is None else f", and asks: {agent.question}"
        console.print(f"the agent is {agent.phase}{asked}", style="yellow", soft_wrap=True)
