"""The agent's half of a session, on every store: forks and rewinds have it, one at a time goes on with it."""

import asyncio
import heapq
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stateroom import Sessions, State, tool
from stateroom.agent import Agent, Trajectory, recall, run
from stateroom.errors import Conflict, EnvironmentFailed, InvalidMove, ModelUnavailable, SessionError, SessionLeased
from stateroom.model import Answer, Item, Model, Request, Scripted, function_call
from stateroom.session import Session, SessionInfo, Update
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import raises


class Desk(State):
    notes: list[str] = []
    heard: list[str] = []
    rows: list[list[str]] = [["a"], ["b"]]


class DeskEnvironment(Unjudged[Desk]):
    """Takes notes, asks, and answers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.failing: list[Exception] = []

    @tool
    def note(self, state: Desk, text: str) -> int:
        """Write something down."""
        state.notes.append(text)
        return len(state.notes)

    @tool
    async def note_later(self, state: Desk, text: str) -> int:
        """Write something down when it is time."""
        self.begun.set()
        await self.go_on.wait()
        state.notes.append(text)
        return len(state.notes)

    @tool
    def note_if(self, state: Desk, ask: Callable[[str], Any], text: str) -> int:
        """Write something down if somebody agrees."""
        if ask(f"Note {text}?") == "yes":
            state.notes.append(text)
        return len(state.notes)

    @tool(effect="read")
    def look(self, state: Desk) -> list[str]:
        """What was written down."""
        return list(state.notes)

    def reply(self, state: Desk, message: str) -> str | None:
        if self.failing:
            state.heard.append("lost")
            raise self.failing.pop()
        state.heard.append(message)
        return {"number": 1} if message == "odd" else f"heard {message}" if len(state.heard) < 2 else None  # type: ignore[return-value]


SCRIPT = Scripted(
    [
        [function_call("note", "same", text="a"), function_call("note", "same", text="b")],
        "first",
        [function_call("look", "c"), function_call("note_if", "c", text="c"), function_call("note", "c", text="d")],
        "last",
    ]
)

FINAL = ["a", "b", "c", "d"]


class Keeps(Model):
    """Gives an answer when it may."""

    def __init__(self, answer: list[Item] | str) -> None:
        self.script = Scripted([answer])
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        self.asked.set()
        await self.may.wait()
        return await self.script.answer(request)


def sessions_in(store: Store) -> Sessions[Desk]:
    return Sessions[Desk](DeskEnvironment(), store)


async def to_the_end(session: Session[Desk], model: Model = SCRIPT) -> Trajectory:
    """Run an agent, and say yes whenever it asks."""
    while (trajectory := await run(Agent(model), session)).status == "waiting":
        await session.agent.answer("yes")
    return trajectory


async def spoken(session: Session[Desk]) -> list[Item]:
    return (await recall(session.agent)).items


# Going back, and branching off.


class MailEnvironment(DeskEnvironment):
    """Sends letters too."""

    def __init__(self) -> None:
        super().__init__()
        self.mailed: list[str] = []

    @tool(effect="external")
    async def mail(self, state: Desk, text: str) -> str:
        """Send a letter, which takes until it is time."""
        self.mailed.append(text)
        self.begun.set()
        await self.go_on.wait()
        state.notes.append(text)
        return "sent"


@pytest.mark.parametrize("times", [1, 2])
async def test_going_back_to_where_a_call_had_reached_outside_does_not_make_it_again(store: Store, times: int) -> None:
    environment = MailEnvironment()
    session = await Sessions[Desk](environment, store).seed({})
    agent = Agent(Scripted([[function_call("mail", "c", text="a")], "done", "done"]))
    working = asyncio.create_task(run(agent, session))
    await environment.begun.wait()
    working.cancel()
    await asyncio.wait([working])
    other = await Sessions[Desk](environment, store).open(session.id)
    for _ in range(times):
        await other.rewind(other.revision)
    environment.go_on.set()
    assert (await run(agent, other)).status == "completed"
    assert environment.mailed == ["a"]
    await other.rewind(2)  # before it began
    assert (await run(agent, other)).status == "completed"
    assert environment.mailed == ["a", "a"]
    began = [entry.revision async for entry in other.log(kinds={"started"})][-1]
    await other.rewind(began)  # it has come back since, and that is undone
    assert (await run(agent, other)).status == "completed"
    assert environment.mailed == ["a", "a", "a"]
    assert list(other.state.notes) == ["a"]


async def test_what_was_undone_is_not_part_of_the_conversation_but_of_the_log(store: Store) -> None:
    session = await sessions_in(store).seed({}, seed=1)
    assert (await to_the_end(session)).status == "completed"
    assert (session.state.notes, session.state.heard) == (FINAL, ["first", "last"])
    assert await spoken(session)
    entries = len([entry async for entry in session.log(kinds={"message"})])
    await session.rewind(1)
    assert (await spoken(session), session.agent.status.phase, session.agent.status.said) == ([], "idle", 0)
    assert len([entry async for entry in session.log(kinds={"message"})]) == entries


async def test_branches_of_one_that_waits_are_answered_apart(store: Store) -> None:
    session = await sessions_in(store).seed({})
    assert (await run(Agent(SCRIPT), session)).question == "Note c?"
    branches = await session.fork(n=2)
    for branch, given in zip(branches, ("yes", "no"), strict=True):
        assert branch.agent.status == session.agent.status
        await branch.agent.answer(given)
        await run(Agent(SCRIPT), branch)
    assert [branch.state.notes for branch in branches] == [FINAL, ["a", "b", "d"]]
    assert (session.agent.status.phase, session.agent.status.question) == ("waiting_feedback", "Note c?")


async def test_going_back_to_where_it_waits_takes_another_answer_and_asks_no_more(store: Store) -> None:
    session = await sessions_in(store).seed({})
    await run(Agent(SCRIPT), session)
    waits = session.revision
    for given, notes in (("no", ["a", "b", "d"]), ("yes", FINAL), ("no", ["a", "b", "d"])):
        await session.agent.answer(given)
        assert (await run(Agent(SCRIPT), session)).status == "completed"
        assert session.state.notes == notes
        await session.rewind(waits)
        assert (session.agent.status.phase, session.agent.status.question) == ("waiting_feedback", "Note c?")


# One at a time.


@pytest.mark.parametrize("answer", ["hello", [function_call("note", "n", text="a")]])
async def test_of_two_that_run_one_session_one_is_refused(store: Store, answer: list[Item] | str) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    models = [Keeps(answer), Keeps(answer)]
    tasks = [
        asyncio.create_task(run(Agent(model, max_steps=1), session))
        for model, session in zip(models, (here, there), strict=True)
    ]
    for model in models:
        await model.asked.wait()
    for model in models:
        model.may.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["Conflict", "Trajectory"]
    final = await sessions_in(store).open(here.id)
    assert final.agent.status.answers == 1
    assert len(final.state.notes) == (0 if answer == "hello" else 1)


@pytest.mark.every_store
async def test_two_that_carry_out_the_same_calls_carry_them_out_once(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    calls = [function_call("note", "n", text=text) for text in "abc"]
    await here.agent.say(Update(calls, "model", ("new_task", "plan_ready")))
    await there.state_at()
    models = [Keeps("done"), Keeps("done")]
    for model in models:
        model.script = Scripted(["", "done", "bye"])
        model.may.set()
    ended = await asyncio.gather(
        *(run(Agent(model), session) for model, session in zip(models, (here, there), strict=True)),
        return_exceptions=True,
    )
    assert {type(each).__name__ for each in ended} <= {"Conflict", "Trajectory"}
    final = await sessions_in(store).open(here.id)
    assert final.state.notes == ["a", "b", "c"]
    outputs = [item["output"] for item in await spoken(final) if item["type"] == "function_call_output"]
    assert outputs == ["1", "2", "3"]


@pytest.mark.every_store
async def test_who_speaks_of_an_older_stance_is_refused_and_nothing_is_said(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    seen = there.agent.status
    await here.agent.move("new_task")
    with raises(Conflict):
        await there.agent.say(Update([], "model", ("plan_ready",)), after=seen)
    assert (there.agent.status.phase, there.revision) == ("planning", 2)


async def test_what_others_did_meanwhile_counts_for_what_can_be_said(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    await here.agent.move("new_task")
    assert (await there.agent.move("plan_ready")).phase == "executing"
    with raises(InvalidMove):
        await here.agent.move("plan_ready")


async def test_calls_by_hand_do_not_get_in_the_agents_way(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    model = Keeps("hello")
    task = asyncio.create_task(run(Agent(model, max_steps=1), here))
    await model.asked.wait()
    await there.call("note", {"text": "by hand"})
    model.may.set()
    assert (await task).status == "incomplete"
    assert here.agent.status.answers == 1
    assert here.state.notes == ["by hand"]


@pytest.mark.every_store
async def test_whoever_holds_the_session_is_the_only_one_who_says_something_but_for_cancelling(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    async with here.lease():
        await here.agent.move("new_task")
        with pytest.raises(SessionLeased):
            await there.agent.move("plan_ready")
        await there.agent.cancel("enough")
        with raises(InvalidMove):
            await here.agent.move("plan_ready")
    assert (await sessions_in(store).open(here.id)).agent.status.phase == "cancelled"


async def test_a_handle_from_before_goes_on_from_where_others_have_come_to(store: Store) -> None:
    here = await sessions_in(store).seed({})
    assert (await run(Agent(SCRIPT), here)).status == "waiting"
    assert (await to_the_end(await sessions_in(store).open(here.id))).status == "completed"
    again = await run(Agent(SCRIPT), here)
    assert (again.status, again.output) == ("completed", [])
    assert list(here.state.notes) == FINAL


@pytest.mark.usefixtures("unread")
async def test_after_a_rewind_that_has_not_read_a_large_state_an_agent_goes_on(store: Store) -> None:
    session = await sessions_in(store).seed({})
    for number in range(20):  # more than are in memory
        await session.call("note", {"text": str(number)})
    await session.rewind(2)
    with raises(SessionError):
        _ = session.agent.status
    assert (await to_the_end(session)).status == "completed"
    assert list(session.state.notes)[1:] == FINAL


@pytest.mark.every_store
async def test_a_question_and_an_answer_may_be_large(store: Store) -> None:
    text = "why " * store.large
    model = Scripted([[function_call("note_if", "c" * store.large, text=text)], "done", "done"])
    here = await sessions_in(store).seed({})
    asked = await run(Agent(model), here)
    there = await sessions_in(store).open(here.id)
    assert there.agent.status.question == asked.question == f"Note {text}?"
    await there.agent.answer({"at length": text})
    assert here.agent.status.phase == "waiting_feedback"
    await here.agent.refresh()
    assert here.agent.status == there.agent.status == (await sessions_in(store).open(here.id)).agent.status
    assert here.agent.status.inputs == ({"at length": text},)


# Cancelling.


async def test_a_cancellation_from_elsewhere_is_found_when_the_model_has_answered(store: Store) -> None:
    here = await sessions_in(store).seed({})
    there = await sessions_in(store).open(here.id)
    model = Keeps([function_call("note", "n", text="a")])
    task = asyncio.create_task(run(Agent(model), here))
    await model.asked.wait()
    await there.agent.cancel("enough")
    model.may.set()
    trajectory = await task
    assert trajectory.status == "cancelled"
    assert (here.agent.status.phase, here.agent.status.answers, here.state.notes) == ("cancelled", 0, [])


async def test_a_call_under_way_comes_to_its_end_and_the_next_is_not_made(store: Store) -> None:
    environment = DeskEnvironment()
    here = await Sessions[Desk](environment, store).seed({})
    there = await sessions_in(store).open(here.id)
    calls = [function_call("note_later", "n", text="a"), function_call("note", "n", text="b")]
    task = asyncio.create_task(run(Agent(Scripted([calls, "done"])), here))
    await environment.begun.wait()
    await there.agent.cancel()
    environment.go_on.set()
    assert (await task).status == "cancelled"
    final = await sessions_in(store).open(here.id)
    assert (final.agent.status.phase, final.state.notes, final.agent.status.open) == ("cancelled", ["a"], ())
    assert [item["type"] for item in await spoken(final)] == ["function_call"] * 2 + ["function_call_output"] * 2


# Waiting.


def held() -> tuple[int, int, int]:
    """The tasks, threads and open files of this process, sockets among them."""
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))


async def test_sessions_that_wait_hold_no_task_thread_or_connection(store: Store) -> None:
    sessions = sessions_in(store)
    waiting: list[str] = []
    before = None
    for number in range(30):
        session = await sessions.seed({})
        assert (await run(Agent(SCRIPT), session)).status == "waiting"
        waiting.append(session.id)
        if number == 4:  # the store and its threads are warm
            before = held()
    del session
    assert before is not None
    assert all(now <= then for now, then in zip(held(), before, strict=True)), (held(), before)
    others = sessions_in(store)
    for session_id in waiting[:3]:  # and they go on, also where nobody has seen them
        assert (await to_the_end(await others.open(session_id))).status == "completed"


# What the environment answers.


async def test_a_reply_is_one_commit_and_is_not_made_twice(store: Store) -> None:
    session = await sessions_in(store).seed({})
    other = await sessions_in(store).open(session.id)
    assert await session.reply("hello", call_id="r") == "heard hello"
    assert await other.reply("hello", call_id="r") == "heard hello"
    assert ((await other.state_at()).heard, other.revision) == (["hello"], 2)
    [entry] = [entry async for entry in session.log(kinds={"call"})]
    assert (entry.name, entry.input, entry.output) == ("reply", {"message": "hello"}, "heard hello")


async def test_a_reply_that_fails_changes_nothing_and_says_whose_fault_it_is(store: Store) -> None:
    environment = DeskEnvironment()
    session = await Sessions[Desk](environment, store).seed({})
    for error, raised in ((ModelUnavailable("busy"), ModelUnavailable), (KeyError("secret"), EnvironmentFailed)):
        environment.failing = [error] if not environment.failing else environment.failing
        with raises(raised):
            await session.reply("hello", call_id="r")
        assert (session.state.heard, session.revision) == ([], 1)
    assert await session.reply("hello", call_id="r") == "heard hello"
    for _ in range(2):
        with raises(EnvironmentFailed):  # what it gives is not a text
            await session.reply("odd", call_id="s")
    assert (session.state.heard, session.revision) == (["hello"], 2)


async def test_no_model_can_call_reply(store: Store) -> None:
    session = await sessions_in(store).seed({})
    result = await session.call("reply", {"message": "hello"})
    assert (result.code, session.revision) == ("unknown_tool", 1)
    with pytest.raises(InvalidMove):
        await session.agent.answer("hello")


async def test_a_reply_gets_what_it_asks_for_and_the_message_only_then(store: Store) -> None:
    class Deaf(DeskEnvironment):
        """Says the same whatever it hears."""

        def reply(self, state: Desk, session: SessionInfo) -> str:  # type: ignore[override]
            state.heard.append("something")
            return f"step {session.step} of call {session.call_id}"

    session = await Sessions[Desk](Deaf(), store).seed({})
    assert await session.reply("hello", call_id="r") == "step 0 of call r"
    assert session.state.heard == ["something"]


async def test_a_reply_that_tampers_and_fails_leaves_the_state_as_it_is_stored(store: Store) -> None:
    class Tampers(DeskEnvironment):
        """Changes what it cannot be seen to change."""

        def reply(self, state: Desk) -> str:  # type: ignore[override]
            heapq.heappop(state.rows).append("unseen")
            raise OSError

    session = await Sessions[Desk](Tampers(), store).seed({})
    with pytest.raises(EnvironmentFailed):
        await session.reply("hello", call_id="r")
    assert session.state.rows == [["a"], ["b"]]
