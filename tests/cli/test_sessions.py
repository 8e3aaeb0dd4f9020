"""`stateroom sessions`: lists, states, differences and logs of a store."""

import re
from pathlib import Path
from typing import Any

import pytest

from stateroom import SessionLimits, Sessions, tool
from stateroom.gallery import CounterEnvironment
from stateroom.session import Update
from stateroom.store import Store
from tests.cli.conftest import STORE, Refuses, in_store
from tests.cli.test_end_to_end import environ, run
from tests.session.stored_sessions import NotesEnvironment, sessions_of
from tests.session.test_events import Bank

ODD = "[bold]:bug:[/x]"


class PublishedNotes(NotesEnvironment):
    """Notes that cannot be published."""

    name = "notes"

    @tool(effect="external")
    def publish(self) -> None:
        """Fail to publish."""
        raise OSError


@pytest.fixture
def ids(stateroom: Any) -> tuple[str, str]:
    """A store with a closed session, and a live fork of it."""

    async def fill(store: Store) -> tuple[str, str]:
        session = await Sessions(PublishedNotes(), store).seed({"user": "ann", "topic": ODD, "_hidden": 1})
        await session.call("add", {"text": ODD}, call_id="first")
        await session.call("add", {"text": "two"})
        fork = await session.fork(at=2)
        await fork.checkpoint("here")
        await fork.call("publish", {}, call_id="out")
        await session.rewind(to=1)
        await session.verify()
        await session.close()
        return session.id, fork.id

    return in_store(fill)


def test_list(stateroom: Any, ids: tuple[str, str]) -> None:
    closed, fork = ids
    shown = stateroom("sessions", "list", "--store", STORE).out
    assert all(len(line) <= 80 for line in shown.splitlines())
    (line,) = [line for line in shown.splitlines() if line.startswith(fork)]
    assert line.split()[:4] == [fork, "notes", "live", "5"]
    assert f"└ {closed}  forked at" in shown
    found = {row["id"]: row for row in stateroom("sessions", "list", "--store", STORE, "--json").json}
    assert (found[closed]["status"], found[closed]["revision"], found[closed]["parent"]) == ("closed", 6, None)
    assert found[fork]["parent"] == {"session": closed, "revision": 2}


def test_list_can_be_narrowed(stateroom: Any, ids: tuple[str, str]) -> None:
    shown = stateroom("sessions", "list", "--store", STORE, "--limit", 1)
    assert "the first 1; show more with --limit" in shown.out
    assert stateroom("sessions", "list", "--store", STORE, "--env", "other").out == "no sessions\n"
    assert stateroom("sessions", "list", "--store", "memory://", "--json").json == []


def test_list_can_be_by_phase_and_in_another_order(stateroom: Any, ids: tuple[str, str]) -> None:
    closed, fork = ids

    async def talk(store: Store) -> None:
        session = await Sessions(NotesEnvironment(), store).open(fork)
        await session.agent.say(Update([], "user", ("new_task",)))

    in_store(talk)

    def listed(*given: str) -> list[tuple[str, str | None, float | None]]:
        rows = stateroom("sessions", "list", "--store", STORE, "--json", *given).json
        return [(row["id"], row["phase"], row["reward"]) for row in rows]

    assert listed("--order", "oldest") == [(closed, None, 1.0), (fork, "planning", None)]
    assert listed("--order", "reward") == [(closed, None, 1.0)]
    assert listed("--phase", "planning") == [(fork, "planning", None)]


def test_worlds_and_shared_states_are_listed_on_demand(stateroom: Any) -> None:
    assert stateroom("run", "office", "--limit", 2, "--output", "x.jsonl").code == 0
    given = ("sessions", "list", "--store", "sqlite:///x_sessions.db")
    few = stateroom(*given).out
    assert "world" not in few
    assert len(re.findall(r"^[0-9a-f]{24}  office       closed +\d+  20\d\d-\d\d-\d\d \S{5}$", few, re.MULTILINE)) == 2
    every = stateroom(*given, "--all").out
    assert every.startswith(few)
    assert re.search(r"^world:office:[0-9a-f]{32}         1  20\d\d-\d\d-\d\d \S{5}$", every, re.MULTILINE)
    assert all(len(line) <= 80 for line in every.splitlines())
    assert len(stateroom(*given, "--json").json) == 2
    assert len(stateroom(*given, "--json", "--all", "--env", "office").json) == 3
    assert stateroom(*given, "--all", "--env", "other").out == "no sessions\n"
    sizes = stateroom("store", "stats", "--store", "sqlite:///x_sessions.db").out
    assert re.search(r"^world:office:[0-9a-f]{32}  office:world +1 +3\.\d MB$", sizes, re.MULTILINE)
    assert all(len(line) <= 80 for line in sizes.splitlines())


def test_long_names_are_wrapped_and_all_else_stays_whole(stateroom: Any, tmp_path: Path) -> None:
    class Long(CounterEnvironment):
        name = "customer-service-desk"

    chosen = "evaluation-2026-11-16-task-12-of-the-second-run"

    async def fill(store: Store) -> str:
        sessions = Sessions(Long(), store)
        await sessions.seed({"initial_count": 1, "expected_count": 2}, session_id=chosen)
        return (await sessions.seed({"initial_count": 1, "expected_count": 2})).id

    usual = in_store(fill)
    for command, columns in (
        (["sessions", "list"], ["session", "environment", "status", "revision", "created", "(UTC)"]),
        (["store", "stats"], ["largest", "session", "environment", "entries", "size"]),
    ):
        lines = stateroom(*command, "--store", STORE).out.splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert columns in [line.split() for line in lines]
        assert [line for line in lines if line.startswith(f"{usual} ")]
    shown = stateroom("sessions", "list", "--store", STORE).out
    assert re.search(rf"^{usual}  \S+ +live +1  20\d\d-\d\d-\d\d \d\d:\d\d$", shown, re.MULTILINE)
    assert chosen in "".join(line[:24].strip() for line in shown.splitlines())
    wide = run(tmp_path, "sessions", "list", "--store", STORE, env=environ(120)).stdout
    assert f"{chosen}  customer-service-desk  live" in wide


def test_show_a_state_at_any_revision(stateroom: Any, ids: tuple[str, str]) -> None:
    shown = stateroom("sessions", "show", ids[0], "--store", STORE, "--at", 3).out
    assert f'  notes: ["{ODD}", "two"]' in shown

    def state(*more: Any) -> Any:
        return stateroom("sessions", "show", ids[0], "--store", STORE, "--json", *more).json

    assert state()["state"] == state("--at", 1)["state"] == {"notes": []}
    assert state("--at", 2)["state"] == {"notes": [ODD]}
    assert (state("--at", 2)["at"], state("--at", 2)["revision"]) == (2, 6)
    assert [each["text"] for each in state("--diff", 2)["differences"]] == [f'notes[0]: "{ODD}" → gone']
    shown = stateroom("sessions", "show", ids[0], "--store", STORE, "--at", 2, "--diff", 2).out
    assert shown.splitlines()[1:] == ["since revision 2: nothing changed"]


def test_a_log_is_data_too(stateroom: Any, ids: tuple[str, str]) -> None:
    found = stateroom("sessions", "log", ids[0], "--store", STORE, "--json").json
    assert [entry["kind"] for entry in found] == ["seed", "call", "call", "rewind", "verdict", "close"]
    assert (found[1]["call_id"], found[1]["output"], len(found[1]["changes"])) == ("first", 1, 1)
    told = stateroom("sessions", "log", ids[0], "--store", STORE).out
    assert f'   4  rewind     back to revision 1\n                  notes[0]: "{ODD}" → gone\n' in told


def test_a_log_tells_what_was_recorded_and_when(stateroom: Any) -> None:
    async def fill(store: Store) -> str:
        session = await Sessions(NotesEnvironment(), store, SessionLimits(now=lambda: 1e9)).seed({"user": "ann"})
        await session.record("bell", {"floor": 3}, user="ann")
        return session.id

    told = stateroom("sessions", "log", in_store(fill), "--store", STORE).out.splitlines()
    asides = ["                  for ann", "                  at 2001-09-09 01:46 UTC"]
    assert told[1:] == ['   2  record     bell {"floor": 3}', *asides]


def test_the_log_of_a_fork_begins_with_its_parents(stateroom: Any, ids: tuple[str, str]) -> None:
    found = stateroom("sessions", "log", ids[1], "--store", STORE, "--json").json
    assert [entry["kind"] for entry in found] == ["seed", "call", "checkpoint", "started", "failed"]
    told = stateroom("sessions", "log", ids[1], "--store", STORE).out.splitlines()[-3:]
    assert told[:2] == ["   3  checkpoint here", "   4  started    publish() started"]
    assert told[2].startswith("   5  failed     publish() failed: ")


@pytest.mark.parametrize(
    "arguments",
    [
        "show nope --store sqlite:///rooms.db",
        "log nope --store sqlite:///rooms.db",
        "show ID --store sqlite:///rooms.db --at 99",
        "show ID --store sqlite:///rooms.db --diff 99",
        "show ID --store sqlite:///rooms.db --at 0",
        "list --store sqlite:///typo.db",
        "show ID --store sqlite:///typo.db",
        "log ID --store sqlite:///typo.db",
        "list --store sqlite:///notes.txt",
        "list",
    ],
)
def test_a_mistake_is_a_short_message(refuses: Refuses, ids: tuple[str, str], arguments: str) -> None:
    Path("notes.txt").write_text("not a store, " * 100)
    refuses("sessions", *arguments.replace("ID", ids[0]).split())
    assert not Path("typo.db").exists()


def test_a_log_tells_of_events(stateroom: Any) -> None:
    async def fill(store: Store) -> str:
        session = await Sessions(Bank(), store).seed({})
        await session.call("deposit", {"amounts": [5]})
        return session.id

    shown = stateroom("sessions", "log", in_store(fill), "--store", "sqlite:///rooms.db").out
    assert shown.splitlines()[1:] == [
        "   2  call       deposit(amounts=[5]) → 5",
        '                  deposited(amount=5, at="2024-01-02T12:00:00Z", proof="_w==")',
        "                  balance: 0 → 5",
        '                  since: null → "2024-01-02T12:00:00Z"',
    ]


def test_the_log_of_a_shared_state_says_whose_it_is(stateroom: Any) -> None:
    async def fill(store: Store) -> str:
        session = await sessions_of(store).seed({"user": "ann"})
        await session.call("meet")
        return session.id

    session = in_store(fill)
    shown = stateroom("sessions", "log", "user:notes:ann", "--store", "sqlite:///rooms.db").out
    assert shown.splitlines() == [
        "   1  seed       ann",
        f"   2  intent     of session {session}, revision 2",
        f"   3  call       of session {session}, revision 2",
        "                  seen: 0 → 1",
    ]
