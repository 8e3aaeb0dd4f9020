"""Agents in a store: what was said, where they stand, and what they can be told from outside."""

import re
from pathlib import Path
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, Context, ThreadEnvironment, Threads
from stateroom.model import Item, Policy, message
from stateroom.store import Store
from tests.agent.thread_worker import Payer, PurseEnvironment
from tests.cli.conftest import STORE, Refuses, in_store

PURSE = f"{Path(__file__).parents[1] / 'agent' / 'thread_worker.py'}:PurseEnvironment"


@pytest.fixture
def waiting(stateroom: Any) -> str:
    """A session whose agent has paid, and asks before it pays more."""

    async def fill(store: Store) -> str:
        threads = Threads(Sessions(PurseEnvironment(), store))
        thread = await threads.create("ann", instructions="Be careful.")
        for said in ("pay 1", "pay_if_allowed 100"):
            await threads.add(thread, said)
            await threads.run(thread, Agent(Payer()))
        return thread.id

    return in_store(fill)


@pytest.fixture
def plain(stateroom: Any) -> str:
    """A thread without tools, whose agent was told something."""

    async def fill(store: Store) -> str:
        threads = Threads(Sessions(ThreadEnvironment(), store))
        thread = await threads.create()
        await threads.add(thread, "hello\nworld")
        return thread.id

    return in_store(fill)


def go_on(session: str) -> str:
    """Run a session's agent; gives how that ended."""

    async def run(store: Store) -> str:
        return (await Threads(Sessions(PurseEnvironment(), store)).run(session, Agent(Payer()))).status

    return in_store(run)


def test_talk(stateroom: Any, waiting: str, plain: str) -> None:
    told = stateroom("sessions", "transcript", waiting, "--store", STORE).out.splitlines()
    assert told == [
        "   system  Be careful.",
        "     user  pay 1",
        "    calls  pay(amount=1)",
        "   result  1",
        "assistant  4 items, 1 spent",
        "     user  pay_if_allowed 100",
        "    calls  pay_if_allowed(amount=100)",
        "the agent is waiting_feedback, and asks: Pay 100?",
    ]
    found = stateroom("sessions", "transcript", waiting, "--store", STORE, "--json").json
    assert found["agent"] == {"phase": "waiting_feedback", "question": "Pay 100?"}
    assert [(each["by"], len(each["items"])) for each in found["said"]] == [
        *(("task", 1), ("user", 1), ("model", 1), ("model", 2), ("user", 1), ("model", 1)),
    ]
    told = stateroom("sessions", "transcript", plain, "--store", STORE).out.splitlines()
    assert told == ["     user  hello", "     user  world", "the agent is planning"]


def test_show_tells_where_the_agent_stands_now_alone(stateroom: Any, waiting: str) -> None:
    found = stateroom("sessions", "show", waiting, "--store", STORE, "--json").json
    assert found["agent"] == {"phase": "waiting_feedback", "question": "Pay 100?"}
    shown = stateroom("sessions", "show", waiting, "--store", STORE, "--at", 1).out.splitlines()
    assert shown[1:] == ["  spent: 0"]


def test_a_log_tells_of_compactions_and_cuts_what_is_long(stateroom: Any) -> None:
    class Nods(Policy):
        def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            return [message("yes")]

    async def fill(store: Store) -> str:
        threads = Threads(Sessions(ThreadEnvironment(), store))
        thread = await threads.create()
        for _ in range(3):
            await threads.add(thread, "x" * 300)
            await threads.run(thread, Agent(Nods(), context=Context(250)))
        return thread.id

    told = stateroom("sessions", "log", in_store(fill), "--store", STORE).out.splitlines()
    assert any(re.search(r"^ +\d+  compaction the model's view starts from \d items$", line) for line in told)
    assert f"   2  message    user: {'x' * 80}…" in told


def test_an_agent_that_waits_is_told_what_it_asked_for(stateroom: Any, refuses: Refuses, waiting: str) -> None:
    done = stateroom("sessions", "answer", waiting, "yes", "--store", STORE, "--env", PURSE)
    assert (done.code, done.out) == (0, "the agent is executing\n")
    refuses("sessions", "answer", waiting, "yes", "--store", STORE, "--env", PURSE)
    assert go_on(waiting) == "completed"
    shown = stateroom("sessions", "show", waiting, "--store", STORE, "--json").json
    assert shown["state"] == {"spent": 101}


def test_turns_are_undone_and_redone(stateroom: Any, waiting: str) -> None:
    where = ("--store", STORE, "--env", PURSE)
    done = stateroom("sessions", "undo", waiting, "--steps", 3, *where)
    assert (done.code, done.out) == (0, "2 steps undone; the session is at revision 9\n")
    *_, told = stateroom("sessions", "log", waiting, "--store", STORE).out.splitlines()[:-1]
    assert told == "   9  rewind     back to revision 1; 8 can be redone"
    done = stateroom("sessions", "redo", waiting, *where, "--json")
    assert done.json == {"steps": 1, "revision": 10}
    assert stateroom("sessions", "transcript", waiting, "--store", STORE).out.splitlines()[-3:] == [
        "   result  1",
        "assistant  4 items, 1 spent",
        "the agent is done",
    ]


def test_an_agent_is_cancelled(stateroom: Any, waiting: str, plain: str) -> None:
    done = stateroom(
        "sessions", "cancel", waiting, "--store", STORE, "--env", PURSE, "--reason", "it is too much", "--json"
    )
    assert done.json == {"agent": {"phase": "cancelled", "question": None}}
    assert go_on(waiting) == "cancelled"
    told = stateroom("sessions", "transcript", waiting, "--store", STORE).out.splitlines()
    assert told[-2:] == ["           it is too much", "the agent is cancelled"]
    assert stateroom("sessions", "cancel", plain, "--store", STORE).out == "the agent is cancelled\n"


def test_a_registered_environment_is_found_by_its_name(stateroom: Any, refuses: Refuses) -> None:
    stateroom("run", "counter", "--limit", 1, "--output", "out.jsonl")
    store = "sqlite:///out_sessions.db"
    [session] = stateroom("sessions", "list", "--store", store, "--json").json
    refuses("sessions", "cancel", session["id"], "--store", store)
    assert "assistant  " in stateroom("sessions", "transcript", session["id"], "--store", store).out


@pytest.mark.parametrize(
    "arguments",
    [
        "answer ID yes --store sqlite:///rooms.db",
        "cancel ID --store sqlite:///rooms.db",
        "cancel ID --store sqlite:///rooms.db --env counter",
        "cancel nope --store sqlite:///rooms.db",
        "answer nope yes --store sqlite:///rooms.db",
        "transcript nope --store sqlite:///rooms.db",
        "transcript ID --store sqlite:///typo.db",
        "answer ID --store sqlite:///rooms.db",
    ],
)
def test_a_mistake_is_a_short_message(refuses: Refuses, waiting: str, arguments: str) -> None:
    refuses("sessions", *arguments.replace("ID", waiting).split())
