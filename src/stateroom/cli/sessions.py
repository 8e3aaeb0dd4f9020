"""`stateroom sessions`: inspect the sessions of a store, and answer or cancel their agents."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from pydantic import Field
from rich.text import Text

from stateroom.agent import ThreadEnvironment, Threads, transcript as read_transcript
from stateroom.cli.command import Commands, Output
from stateroom.cli.options import OnlyEnv, StoreOptions
from stateroom.cli.output import (
    ID_LENGTH,
    asides,
    console,
    counted,
    folded,
    print_conversation,
    print_hanging,
    print_line,
    print_state,
    print_table,
    say,
    table,
    when,
)
from stateroom.environment import Environment, find_environment, make_environment, registered
from stateroom.errors import NotFound
from stateroom.options import Option, options
from stateroom.rollout import EnvArgs
from stateroom.session import (
    SHARED_IDS,
    AgentStatus,
    History,
    LogEntry,
    LogReader,
    Session,
    Sessions,
    SessionSummary,
    entry_data,
    entry_line,
)
from stateroom.state import ChangeData, differences, lines
from stateroom.store import Head, HeadFilter, Order

app = Commands(help="Inspect the sessions of a store, and answer, cancel or undo what their agents do.")


@options
class SessionOptions(StoreOptions):
    """A session in a store."""

    session: Annotated[str, Field(description="The session's id.")] = field(kw_only=False)


@options
class AgentOptions(SessionOptions):
    """A session in a store with its environment, which is needed to change the session."""

    env: Annotated[
        str | None,
        Field(description="The environment of the session, module:Class or path.py:Class, if it is not registered."),
        Option("-e"),
    ] = None
    env_args: EnvArgs = field(default_factory=dict)

    @asynccontextmanager
    async def threads(self) -> AsyncIterator[Threads]:
        """The sessions of the environment."""
        async with self.open() as store:
            environment = self._environment((await store.head(self.session)).environment)
            sessions = Sessions[Any](make_environment(environment, self.env_args), store)
            try:
                yield Threads(sessions)
            finally:
                await sessions.stop()

    def _environment(self, name: str) -> type[Environment[Any, Any]]:
        if self.env is not None:
            return find_environment(self.env)
        if name == ThreadEnvironment.name:
            return ThreadEnvironment
        if name not in registered():
            raise NotFound(f"the environment {name} of the session is not registered here; name its class with --env")
        return find_environment(name)


@app.command("list")
async def list_sessions(
    options: StoreOptions,
    env: OnlyEnv = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list worlds and shared states.")] = False,
    phase: Annotated[str | None, typer.Option(help="Only sessions whose agent is in this phase, such as done.")] = None,
    order: Annotated[Order, typer.Option(help="The order; by reward lists only sessions with a verdict.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="Show at most N.")] = 20,
) -> Output:
    """List sessions, newest first.

    Example: stateroom sessions list --store sqlite:///rooms.db

    Example: stateroom sessions list --store sqlite:///rooms.db --phase waiting_feedback
    """
    heads: list[Head] = []
    async with options.open() as store:
        async for page in store.pages(HeadFilter(environment=None if everything else env, phase=phase), order):
            wanted = page if everything else [head for head in page if not _is_shared(head)]
            heads += [head for head in wanted if env in (None, head.environment.partition(":")[0])]
            if len(heads) >= limit:
                break
    del heads[limit:]
    summaries = [SessionSummary.of(head, time.time()) for head in heads]
    return Output(lambda: to_builtins(summaries), lambda: _print_heads(heads, limit))


def _print_heads(heads: list[Head], limit: int) -> None:
    if not heads:
        console.print("no sessions")
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
        if sessions:
            console.print()
        rows = [(folded(head.id, 2 * ID_LENGTH), str(head.revision), when(head.created)) for head in shared]
        print_table(("world or shared state!", "revision#", "created (UTC)!"), rows)
    if len(heads) == limit:
        console.print(f"the first {limit}; show more with --limit", style="dim")


def _is_shared(head: Head) -> bool:
    """Whether this is a world or a shared state rather than the session of an episode."""
    return head.id.startswith(SHARED_IDS)


@app.command()
async def show(
    options: SessionOptions,
    at: Annotated[int | None, typer.Option(min=1, help="The revision to show; by default the newest.")] = None,
    diff: Annotated[int | None, typer.Option(min=1, help="Show the changes since this revision.")] = None,
) -> Output:
    """Show the state of a session and its agent at any revision, or the changes between two.

    Example: stateroom sessions show ID --store sqlite:///rooms.db --at 3

    Example: stateroom sessions show ID --store sqlite:///rooms.db --at 5 --diff 3
    """
    async with options.open() as store:
        history = History(store)
        head = await store.head(options.session)
        document = await history.document(options.session, at)
        older = (await history.document(options.session, diff)).state if diff else None
    state, agent, revision = document.state, document.progress.agent, at or head.revision
    changes = differences(older, state) if diff else None

    def data() -> dict[str, Any]:
        shown = {"differences": changes} if diff else {"state": state}
        summary = to_builtins(SessionSummary.of(head, time.time()))
        return {**summary, "at": revision, **_status_data(agent), **shown}

    def print_all() -> None:
        what = f" of {head.environment}, {head.status(time.time())}, revision {revision} of {head.revision}"
        say(Text.assemble((head.id, "bold"), what))
        _print_status(agent)
        if changes is None:
            print_state(state)
        else:
            console.print(f"since revision {diff}:" + ("" if changes else " nothing changed"))
            for line in lines(changes):
                say(f"  {line}")

    return Output(data, print_all)


@app.command()
async def log(options: SessionOptions) -> Output:
    """Show the log of a session, with the state changes of each step.

    Example: stateroom sessions log ID --store sqlite:///rooms.db
    """
    steps = await read_log(options)
    return Output(lambda: [entry_data(entry, changes) for entry, changes in steps], lambda: print_log(steps))


@app.command()
async def transcript(options: SessionOptions) -> Output:
    """Show the transcript of a session: messages, tool calls and their results.

    Example: stateroom sessions transcript ID --store sqlite:///rooms.db
    """
    async with options.open() as store:
        agent = (await History(store).document(options.session)).progress.agent
        utterances = await read_transcript(store, options.session)

    def print_all() -> None:
        for utterance in utterances:
            print_conversation((item, ()) for item in utterance.items)
            if utterance.reason:
                print_line("", utterance.reason, "dim")
        _print_status(agent)

    return Output(lambda: {**_status_data(agent), "said": [*map(to_builtins, utterances)]}, print_all)


@app.command()
async def answer(
    options: AgentOptions,
    text: Annotated[str, typer.Argument(help="The answer to the agent's question.", show_default=False)],
) -> Output:
    """Answer the question of a waiting agent. The next process that runs the agent continues with this answer.

    Example: stateroom sessions answer ID yes --store sqlite:///rooms.db
    """
    async with options.threads() as threads:
        return _status_output(await (await threads.sessions.open(options.session)).agent.answer(text))


@app.command()
async def cancel(
    options: AgentOptions,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
) -> Output:
    """Cancel the agent of a session. The process that runs it stops before the next step.

    Example: stateroom sessions cancel ID --store sqlite:///rooms.db --reason "it takes too long"
    """
    async with options.threads() as threads:
        return _status_output(await threads.cancel(options.session, reason))


def _status_output(agent: AgentStatus) -> Output:
    return Output(lambda: _status_data(agent), lambda: _print_status(agent))


def _status_data(agent: AgentStatus) -> dict[str, Any]:
    return {"agent": {"phase": agent.phase, "question": agent.question}}


def _print_status(agent: AgentStatus) -> None:
    """Print the status of an agent, if the session has one."""
    if agent.said:
        asked = "" if agent.question is None else f", and asks: {agent.question}"
        say(f"the agent is {agent.phase}{asked}", "yellow")


Steps = Annotated[int, typer.Option(min=1, help="The number of steps.")]


@app.command()
async def undo(options: AgentOptions, steps: Steps = 1) -> Output:
    """Undo the last steps of a session: calls, edits, and messages with the agent's response.

    Example: stateroom sessions undo ID --store sqlite:///rooms.db --steps 2
    """
    return await _travel(options, Session.undo, steps, "undone")


@app.command()
async def redo(options: AgentOptions, steps: Steps = 1) -> Output:
    """Redo the steps that were undone last, if nothing else has happened since.

    Example: stateroom sessions redo ID --store sqlite:///rooms.db
    """
    return await _travel(options, Session.redo, steps, "redone")


async def _travel(
    options: AgentOptions, travel: Callable[[Session[Any], int], Awaitable[int]], steps: int, done: str
) -> Output:
    async with options.threads() as threads:
        session = await threads.sessions.open(options.session)
        made, revision = await travel(session, steps), session.revision
    summary = f"{counted(made, 'step', 'steps')} {done}; the session is at revision {revision}"
    return Output(lambda: {"steps": made, "revision": revision}, lambda: console.print(summary))


async def read_log(options: SessionOptions) -> list[tuple[LogEntry, list[ChangeData]]]:
    """The entries of a session with their changes."""
    async with options.open() as store:
        return [step async for step in LogReader(store, options.session).read()]


def print_log(steps: list[tuple[LogEntry, list[ChangeData]]]) -> None:
    """Print a log as a readable transcript with state changes."""
    for entry, changes in steps:
        label = Text.assemble(f"{entry.revision:>4}  ", (f"{entry.kind:<10} ", "bold"))
        print_hanging(label, entry_line(entry), wrap=console.is_terminal)
        for line in asides(entry):
            print_hanging(Text(" " * 18), line, "dim", wrap=console.is_terminal)
        for line in lines(changes):
            print_hanging(Text(" " * 18), line, "green", wrap=console.is_terminal)
