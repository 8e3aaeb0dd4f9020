"""`stateroom chat`: talk to an agent in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from stateroom.agent import WAITING, Threads, task_items
from stateroom.cli.options import STORE_VARIABLE, TaskNumber, task_of
from stateroom.cli.output import complain, console, counted, print_conversation, print_line, print_state, say
from stateroom.cli.runs import MAX_ITEM_CHARACTERS, verdict_lines
from stateroom.cli.sessions import print_log
from stateroom.environment import variant_of
from stateroom.errors import InvalidArguments, InvalidMove, NotFound, StateroomError
from stateroom.model import Item, kind_of, text_of
from stateroom.options import Option, options
from stateroom.rollout import (
    EnvironmentSpec,
    EpisodeOptions,
    EpisodePlan,
    RunFiles,
    default_store,
    find_tasks,
    verdict_fields,
    with_changes,
)
from stateroom.session import History, LogEntry, LogReader, Session, Sessions, read_entry
from stateroom.state import lines
from stateroom.store import Store, open_store, without_secrets

FILES = RunFiles(Path("rollouts/chat.jsonl"))
"""The name of the default store; a chat writes no other file."""

COMMANDS = {
    "/fork [REVISION]": "continue in a fork of the session, from now or from a revision",
    "/undo [STEPS]": "undo your last message and what the agent did in response",
    "/redo [STEPS]": "redo what was undone",
    "/state": "show the state",
    "/log": "show the log",
    "/verify": "show the verdict on a fork; the session stays open",
    "/help": "show this list",
    "/quit": "leave; the session stays in the store",
}


@options
class ChatOptions(EpisodeOptions):
    """The options of a chat."""

    environment: EnvironmentSpec = field(kw_only=False)
    store: Annotated[
        str | None,
        Field(description="The store of the session, as a URL; by default an SQLite file in rollouts/."),
        Option(variable=STORE_VARIABLE),
    ] = None


def chat(
    options: ChatOptions,
    task: TaskNumber = 0,
    session: Annotated[
        str | None, typer.Option(help="Continue this session, or a fork if it has ended.", show_default=False)
    ] = None,
) -> None:
    """Talk to an agent, and see its tool calls with their results and state changes.

    You are the user: each line is a message, and a line that begins with / is a command. The session is for the first
    task, or for --task N; an empty line sends the message of the task's user. Ctrl-C stops an answer.

    Example: stateroom chat counter --model reference

    Example: stateroom chat refund --model chat:qwen3@http://127.0.0.1:8000/v1 --task 3

    Without a terminal, each line is a message: echo "add 4" | stateroom chat counter
    """
    environment = options.make_environment()
    tasks = [] if session is not None else find_tasks(environment, options.input)
    options = replace(options, model=options.chosen_model(environment, tasks))
    plan = EpisodePlan(environment, options.open_model(environment), options)
    if options.store is None:
        FILES.sessions.parent.mkdir(exist_ok=True)
    with asyncio.Runner() as runner:
        talk = Chat(plan, tasks, options.store or default_store(environment, FILES))
        try:
            runner.run(talk.begin(task) if session is None else talk.resume(session))
            talk.echoes = not sys.stdin.isatty()  # a terminal already shows them
            for line in _lines():
                if line == "/quit":
                    break
                _carry_out(runner, talk, line)
        finally:
            runner.run(talk.close())
    where = f" --store {without_secrets(options.store)}" if options.store else ""
    chat_again = f"stateroom chat {options.environment} --model {options.model} --session {talk.session.id}{where}"
    say(f"to continue: {chat_again}", "dim")


def _lines() -> Iterator[str]:
    """The lines that the person types."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - lets lines be edited
    while True:
        try:
            yield input("> " if is_terminal else "").strip()
        except EOFError:
            if is_terminal:
                console.print()
            return
        except KeyboardInterrupt:
            console.print("\nleave with /quit or Ctrl-D", style="dim")


def _carry_out(runner: asyncio.Runner, talk: Chat, line: str) -> None:
    try:
        runner.run(talk.command(*line[1:].split()) if line.startswith("/") else talk.say(line))
    except KeyboardInterrupt:
        runner.run(talk.stop())
        console.print("stopped", style="yellow")
    except StateroomError as error:
        complain(f"error: {error}")


class Chat:
    """A conversation of a person and an agent in a session, printed as it happens."""

    def __init__(self, plan: EpisodePlan, tasks: Sequence[dict[str, Any]], store: str) -> None:
        self._plan = plan
        self._tasks = tasks
        self._store = store
        self._opened = AsyncExitStack()
        self.echoes = True
        """Whether the user's messages are printed too."""
        self._prompt = ""
        """The first message of the task's user, until there is a message."""

    async def begin(self, task: int) -> None:
        """Seed a session for a task. The person is its user; the message of the task's user is only a proposal."""
        row = task_of(self._tasks, task)
        items = task_items(row)
        if items and kind_of(items[-1]) == "user":
            self._prompt = text_of(items.pop())
        row = {**row, "responses_create_params": {**row.get("responses_create_params", {}), "input": items}}
        self._prepare(await self._open(), row)
        self._enter(await self._threads.sessions.seed(row), since=1)
        if self._prompt:
            print_line("task", self._prompt, "dim")

    async def resume(self, session: str) -> None:
        """Continue a session, or a fork if it has ended, and print the conversation so far."""
        store = await self._open()
        self._prepare(store, read_entry(await History(store).seed(await store.head(session))).input)
        opened = await self._threads.sessions.open(session, include_closed=True)
        ended = opened.closed or opened.verdict is not None
        self._enter(await opened.fork() if ended else opened, since=0)
        await self._show()

    async def _open(self) -> Store:
        await self._opened.enter_async_context(self._plan.model)
        return await self._opened.enter_async_context(open_store(self._store))

    def _prepare(self, store: Store, row: dict[str, Any]) -> None:
        """Create the agent and the threads for a task row."""
        sessions = Sessions[Any](variant_of(self._plan.environment, row), store)
        self._opened.push_async_callback(sessions.stop)
        self._threads = Threads(sessions)
        self._agent = self._plan.new_agent(row, seed=0)

    def _enter(self, session: Session[Any], since: int) -> None:
        """Continue a session that has been printed up to a revision."""
        self.session = session
        self._reader = LogReader(self._threads.store, session.id, since)
        self._begin_turn()
        who = f"{self._plan.environment.name}, by {self._plan.model.name}"
        say(f"session {session.id} of {who}; /help lists the commands", "dim")

    async def close(self) -> None:
        await self._opened.aclose()

    # Talking.

    async def say(self, text: str) -> None:
        """Send a message to the agent, and let it answer."""
        text, self._prompt = text or self._prompt, ""
        if not text:
            return
        if self.session.agent.status.phase != WAITING:
            self._begin_turn()
        await self._threads.add(self.session.id, text)
        await self._show()
        try:
            done = await self._threads.run(self.session.id, self._agent, on_items=self._show, simulated_user=False)
        except StateroomError:
            await self.stop()
            raise
        if done.question is not None:
            print_line("asks", done.question)
        if done.reason is not None:
            print_line("", f"stopped: {done.reason}", "yellow")

    async def stop(self) -> None:
        """End the agent's turn."""
        with suppress(InvalidMove):  # it has ended
            await self._threads.cancel(self.session.id, "stopped by the user")
        await self._show()

    def _begin_turn(self) -> None:
        self._items: list[Item] = []
        self._steps: list[tuple[LogEntry, list[str]]] = []
        self._shown = 0

    async def _show(self, _: Sequence[Item] = ()) -> None:
        """Print the new entries of the log: messages, and the state changes of each call."""
        async for entry, changes in self._reader.read():
            self._steps.append((entry, lines(changes)))
            if entry.kind == "message":
                self._items += entry.facts["items"]
            elif entry.kind == "rewind":
                for line in lines(changes):
                    print_line("", line, "green")
        new = with_changes(self._items, self._steps)[self._shown :]
        self._shown += len(new)
        print_conversation(
            [(item, changes) for item, changes in new if self.echoes or item.get("role") != "user"], MAX_ITEM_CHARACTERS
        )

    # Commands.

    async def command(self, name: str = "help", argument: str | None = None, *_: str) -> None:
        """Run a command."""
        match name:
            case "fork":
                fork = await self.session.fork(None if argument is None else _number(argument))
                self._enter(fork, since=fork.revision)
            case "undo" | "redo":
                steps = _number(argument or "1")
                done = await (self.session.undo(steps=steps) if name == "undo" else self.session.redo(steps=steps))
                await self._show()
                console.print(f"{name}: {counted(done, 'step', 'steps')}", style="dim")
            case "state":
                print_state((await History(self._threads.store).document(self.session.id)).state)
            case "log":
                print_log([step async for step in LogReader(self._threads.store, self.session.id).read()])
            case "verify":
                verdict = await (await self.session.fork()).verify()
                for speaker, line in verdict_lines(verdict_fields(verdict)):
                    print_line(speaker, line)
            case "help":
                for usage, what in COMMANDS.items():
                    console.print(f"{usage:<17} {what}")
            case _:
                known = ", ".join(usage.split()[0] for usage in COMMANDS)
                raise NotFound(f"unknown command /{name}; available: {known}")


def _number(argument: str) -> int:
    if not argument.isdecimal():
        raise InvalidArguments(f"{argument!r} is not a number")
    return int(argument)
