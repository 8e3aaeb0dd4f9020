"""Undo and redo, on every store: whatever was done, a session is what a list of steps says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Environment, Sessions, open_store, tool
from stateroom.agent import Agent, Threads, transcript
from stateroom.errors import InvalidArguments
from stateroom.model import Item, Policy, Scripted, function_call, last_user_text, message, text_of
from stateroom.session import Session, Update
from stateroom.store import MemoryStore, Store
from tests.examples import share
from tests.messages import raises
from tests.servers.stores import fresh_store
from tests.session.conftest import Snapshots
from tests.session.stored_sessions import Notes, NotesEnvironment, prune

SHARES = {"memory": 2, "sqlite": 0.3, "file": 0.1, "redis": 0.2, "postgresql": 0.1, "tiered": 0.1}
"""How many of the programs are run on a store of each kind."""


class Board(Notes):
    asked: int = 0


class BoardEnvironment(NotesEnvironment, Environment[Board]):
    """Sends notes too."""

    def seed(self) -> Board:  # type: ignore[override]
        return Board()

    @tool(effect="external")
    def send(self, state: Board, text: str) -> None:
        """Send a note."""
        state.notes.append(text)


class Writer(Policy):
    """Writes down what it is told, and says so."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if conversation[-1]["type"] == "function_call_output":
            return [message("done")]
        return [function_call("add", "c", text=last_user_text(conversation))]


def opened(store: Store) -> Sessions[Board]:
    return Sessions(BoardEnvironment(), store)


async def seeded(store: Store, *notes: str) -> Session[Board]:
    session = await opened(store).seed({})
    for note in notes:
        assert (await session.call("add", {"text": note})).ok
    return session


async def said(session: Session[Any], store: Store) -> list[str]:
    """The texts of a conversation, as they are in the store."""
    items = [item for each in await transcript(store, session.id) for item in each.items]
    return [text_of(item) for item in items if item["type"] == "message"]


# Against a model.

Seen = tuple[tuple[str, ...], tuple[str, ...]]
"""The notes of a session, and what was said in it."""


class Model:
    """A session as a list of what was seen after each step, and another of what can be redone."""

    def __init__(self) -> None:
        self.done: list[Seen] = [((), ())]
        self.undone: list[Seen] = []
        self.past: list[list[Seen]] = [[*self.done]]
        """The steps that led to each revision."""

    def step(self, note: str, *words: str, entries: int = 1) -> None:
        notes, said = self.done[-1]
        self.done.append(((*notes, note), (*said, *words)))
        self.undone.clear()
        self.past += [[*self.done]] * entries

    def undo(self, steps: int) -> int:
        return self._move(self.done, self.undone, min(steps, len(self.done) - 1))

    def redo(self, steps: int) -> int:
        return self._move(self.undone, self.done, min(steps, len(self.undone)))

    def _move(self, source: list[Seen], to: list[Seen], steps: int) -> int:
        for _ in range(steps):
            to.append(source.pop())
        self.past += [[*self.done]] * bool(steps)
        return steps

    def rewind(self, revision: int) -> None:
        self.done, self.undone = [*self.past[revision - 1]], []
        self.past.append([*self.done])

    def copy(self) -> "Model":
        made = Model()
        made.done, made.undone, made.past = [*self.done], [*self.undone], [*self.past]
        return made


OFTEN = [
    *["call"] * 3,
    *["undo"] * 5,
    *["redo"] * 4,
    *["turn", "send", "edit", "fork", "checkpoint", "rewind", "reopen"],
]
operations = st.tuples(st.sampled_from(OFTEN), st.sampled_from([0, 0, 1]), st.sampled_from([1, 1, 2, 5]))
"""What is done, in which session, and by how many steps."""


class Run:
    """A program's run, side by side with its models."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions = opened(store)
        self.handles: list[Session[Board]] = []
        self.models = [Model()]
        self.number = 0

    async def step(self, name: str, number: int, steps: int) -> None:
        if name == "reopen":  # as another process would
            self.sessions = opened(self.store)
            self.handles = [await self.sessions.open(session.id) for session in self.handles]
            return
        self.number += 1
        session, model, note = *self.pick(number), f"n{self.number}"
        if name in ("call", "send"):
            assert (await session.call("add" if name == "call" else "send", {"text": note})).ok
            model.step(note, entries=1 if name == "call" else 2)
            if name == "send":  # the first of its two entries is that it starts
                model.past[-2] = model.done[:-1]
        elif name == "edit":
            await session.edit([{"place": ["notes"], "value": [*model.done[-1][0], note]}], by="ada")
            model.step(note)
        elif name == "turn":
            threads = Threads(self.sessions)
            await threads.add(session.id, note)
            await threads.run(session.id, Agent(Writer()))
            model.step(note, note, "done", entries=session.revision - len(model.past))
            model.past[-4:] = [[None]] * 3 + model.past[-1:]  # type: ignore[assignment]  # in the midst of a turn
        elif name == "fork":
            self.handles.append(await session.fork())
            self.models.append(model.copy())
        elif name == "checkpoint":
            await session.checkpoint()
            model.past.append([*model.done])
        elif name == "rewind":
            revision = max(1, session.revision - steps)
            if None not in model.past[revision - 1]:
                await session.rewind(revision)
                model.rewind(revision)
        else:
            assert await getattr(session, name)(steps) == getattr(model, name)(steps)
        assert await self.seen(session) == model.done[-1]
        assert session.revision == len(model.past)

    def pick(self, number: int) -> tuple[Session[Board], Model]:
        return self.handles[number % len(self.handles)], self.models[number % len(self.models)]

    async def seen(self, session: Session[Board]) -> Seen:
        return tuple((await session.state_at()).notes), tuple(await said(session, self.store))


programs = st.lists(operations, min_size=10, max_size=30)


async def carry_out(url: str, program: list[Any]) -> None:
    """Carry out a program on a fresh store: after each step, its session is what the model says."""
    async with open_store(url) as store:
        run = Run(store)
        run.handles.append(await run.sessions.seed({}))
        for operation in program:
            await run.step(*operation)
        for number in range(len(run.handles)):  # all the way back, and forth again
            for name in ("undo", "redo"):
                await run.step(name, number, 100)


@pytest.mark.parametrize("kind", SHARES)
def test_a_session_is_what_a_list_of_its_steps_says(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    @settings(max_examples=share(SHARES[kind]))
    @given(programs)
    def holds(program: list[Any]) -> None:
        with fresh_store(kind, request.getfixturevalue, tmp_path) as url:
            asyncio.run(carry_out(url, program))

    holds()


# What a step is.


async def test_an_answer_is_undone_back_to_the_question(store: Store) -> None:
    agent = Agent(Scripted([[function_call("ask_user", "q", question="Which?")], "thanks"]), asks=True)
    threads = Threads(opened(store))
    thread = (await threads.create()).id
    await threads.add(thread, "hello")
    await threads.run(thread, agent)
    await threads.add(thread, "green")
    session = await threads.sessions.open(thread)
    assert await session.undo() == 1
    assert session.agent.status.question == "Which?"
    await threads.add(thread, "black")
    assert (await threads.run(thread, agent)).status == "completed"


class Talker(BoardEnvironment):
    """Answers."""

    def reply(self, state: Board, message: str) -> str:
        state.asked += 1
        return f"answer {state.asked}"


async def test_a_reply_of_the_environment_is_undone_with_its_change(store: Store) -> None:
    session = await Sessions(Talker(), store).seed({})
    status = await session.agent.say(Update([message("hello")], "model", ("new_task", "plan_ready", "needs_input")))
    reply = await session.reply("hello", call_id=status.call_id("reply"))
    item: Item = {"type": "message", "role": "user", "content": reply}
    await session.agent.say(Update([item], "user", ("input_received",)))
    assert await session.undo() == 1
    assert (session.state.asked, await said(session, store)) == (0, ["hello"])


async def test_undo_stops_where_the_past_was_pruned(store: Store, snapshots_after: Snapshots) -> None:
    snapshots_after(1)
    session = await seeded(store, *map(str, range(30)))
    [cut] = (await prune(store, keep=8)).values()
    assert cut.below is not None
    session = await opened(store).open(session.id)
    assert await session.undo(100) == 31 - cut.below
    assert len(session.state.notes) == cut.below - 1
    assert (await session.redo(100), len(session.state.notes)) == (31 - cut.below, 30)


@pytest.mark.parametrize("steps", [0, -1, 1.0])
async def test_steps_are_counted_from_one(store: Store, steps: Any) -> None:
    with raises(InvalidArguments):
        await (await seeded(store, "a")).undo(steps)


class CountingStore(MemoryStore):
    """Counts the entries that are read."""

    read = 0

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Any]:
        found = await super().entries(session, after=after, until=until)
        self.read += len(found)
        return found


@pytest.mark.parametrize("again", [False, True])
async def test_an_undo_reads_no_more_of_a_long_log(again: bool) -> None:
    store = await CountingStore.open("memory://")
    session = await seeded(store, "a")
    for number in range(300):
        await session.call("add", {"text": str(number)})
        if again:
            await session.undo()
    store.read = 0
    assert await session.undo() == 1
    assert store.read <= 200
