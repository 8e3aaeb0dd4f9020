"""`stateroom store`: check, stats, sweep, prune, vacuum and copy, as a person or a script runs them."""

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from stateroom.cli import output
from stateroom.store import Store
from tests.cli.conftest import STORE, Refuses, in_store
from tests.session.stored_sessions import family, go_on, new, sessions_of

pytestmark = pytest.mark.usefixtures("snapshot_every_commit")


@pytest.fixture
def ids(stateroom: Any) -> list[str]:
    """A store with a parent, a live and a closed fork, and a fork of a fork."""
    return in_store(family)


def as_json(stateroom: Any, *arguments: Any, code: int = 0) -> Any:
    done = stateroom("store", *arguments, "--json")
    assert (done.code, done.err) == (code, "")
    return done.json


def state(stateroom: Any, session: str, store: str = STORE, *more: Any) -> Any:
    return stateroom("sessions", "show", session, "--store", store, "--json", *more).json["state"]


def change(statement: str, **values: Any) -> None:
    with sqlite3.connect("rooms.db") as connection:
        connection.execute(statement, values)
    connection.close()


def test_check(stateroom: Any, ids: list[str]) -> None:
    assert stateroom("store", "check", "--store", STORE) == (0, "4 sessions checked: all is well\n", "")
    assert as_json(stateroom, "check", "--store", STORE) == {"sessions": 4, "problems": []}
    change("DELETE FROM entries WHERE session = :id AND revision BETWEEN 5 AND 7", id=ids[0])
    change("UPDATE blobs SET session = 'nobody' WHERE session = :id", id=ids[1])
    done = stateroom("store", "check", "--store", STORE)
    assert done.code == 1
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[0].split() == ["session", "problem"]
    assert f"{ids[0]}  entries are missing: 5 to 7" in lines
    assert any(line.startswith("(none)") and "blobs of session 'nobody'" in line for line in lines)
    assert re.fullmatch(r"4 sessions checked: \d problems", lines[-1])
    assert all(len(line) <= 80 for line in lines)
    found = as_json(stateroom, "check", "--store", STORE, code=1)
    assert {"session": ids[0], "what": "entries are missing: 5 to 7"} in found["problems"]
    assert [problem for problem in found["problems"] if problem["session"] is None]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_damaged_session_is_listed_and_all_else_goes_on(stateroom: Any, kind: str) -> None:
    url = STORE if kind == "sqlite" else "file://./rooms"

    async def fill(store: Store) -> list[str]:
        await new(store, 2)
        return await family(store)

    damaged = in_store(fill, url)[0]
    if kind == "sqlite":
        change("UPDATE sessions SET owner = CAST(x'ff' AS TEXT) WHERE id = :id", id=damaged)
    else:
        Path(f"rooms/heads/i-{damaged}").write_bytes(b"garbage")
    found = as_json(stateroom, "check", "--store", url, code=1)
    assert found["sessions"] == 4
    assert [problem for problem in found["problems"] if problem["session"] is None and damaged in problem["what"]]
    assert len(as_json(stateroom, "stats", "--store", url)["largest"]) == 4
    assert as_json(stateroom, "sweep", "--store", url) == {"removed": 0}
    assert stateroom("store", "prune", "--store", url, "--keep", "0").code == 0


def test_check_changes_nothing(stateroom: Any, ids: list[str]) -> None:
    before = Path("rooms.db").read_bytes()
    stateroom("store", "check", "--store", STORE)
    stateroom("store", "stats", "--store", STORE)
    stateroom("store", "prune", "--store", STORE, "--keep", 10, "--dry-run")
    assert Path("rooms.db").read_bytes() == before


def test_stats(stateroom: Any, ids: list[str]) -> None:
    shown = stateroom("store", "stats", "--store", STORE, "--limit", 2).out
    assert re.search(rf"^{ids[1]} +notes +\d+ +1[45]\d kB$", shown, re.MULTILINE)
    assert shown.count("notes ") == 3
    found = as_json(stateroom, "stats", "--store", STORE)
    assert found["sessions"] == {"notes": {"live": 3, "closed": 1, "expired": 0}}
    assert found["sizes"]["sessions"]["rows"] == 4
    assert [each["id"] for each in found["largest"]][:2] == [ids[1], ids[0]]
    assert len(found["largest"]) == 4
    assert "largest" not in stateroom("store", "stats", "--store", STORE, "--limit", 0).out


def test_sweep(stateroom: Any, ids: list[str]) -> None:
    change("UPDATE sessions SET expires = 1 WHERE id IN (:closed, :fork)", closed=ids[2], fork=ids[1])
    assert stateroom("store", "sweep", "--store", STORE).out == "1 expired session removed\n"  # the fork has a fork
    assert as_json(stateroom, "sweep", "--store", STORE) == {"removed": 0}
    assert stateroom("store", "check", "--store", STORE).out == "3 sessions checked: all is well\n"


def test_prune(stateroom: Any, ids: list[str]) -> None:
    states = {session: state(stateroom, session) for session in ids}
    given = ("prune", "--store", STORE, "--keep", 10)
    planned = stateroom("store", *given, "--dry-run").out
    assert re.search(rf"^{ids[0]} +notes +before revision 15 of 31 +14$", planned, re.MULTILINE)
    assert planned.endswith("14 entries of 1 session would be removed; nothing was changed\n")
    cut = {"session": ids[0], "environment": "notes", "removed": False, "in_use": False}
    assert as_json(stateroom, *given, "--dry-run")["cuts"] == [cut | {"before": 15, "revision": 31, "entries": 14}]
    done = stateroom("store", *given).out
    done_as_planned = planned.replace("would be removed; nothing was changed", "removed")
    assert done.split() == done_as_planned.replace("would be removed", "removed").split()
    assert stateroom("store", *given).out == "0 entries of 0 sessions removed\n"
    assert {session: state(stateroom, session) for session in ids} == states
    assert stateroom("store", "check", "--store", STORE).code == 0
    assert stateroom("sessions", "show", ids[0], "--store", STORE, "--at", 14).code == 2
    log = stateroom("sessions", "log", ids[0], "--store", STORE).out
    assert [int(line.split()[0]) for line in log.splitlines() if not line.startswith("     ")] == [1, *range(16, 32)]


def test_prune_what_is_old(stateroom: Any, ids: list[str]) -> None:
    given = ("store", "prune", "--store", STORE)
    nothing = "0 entries of 0 sessions removed\n"
    assert stateroom(*given, "--keep", 10, "--older-than", "1h").out == nothing
    assert stateroom(*given, "--closed-older-than", "30d").out == nothing
    change("UPDATE entries SET at = at - 40 * 86400")
    removed = stateroom(*given, "--closed-older-than", "30d").out
    assert re.search(rf"^{ids[2]} +notes +all: closed +4$", removed, re.MULTILINE)
    assert removed.endswith("4 entries of 1 session removed\n")
    assert stateroom(*given, "--keep", 10, "--older-than", "5w").out.endswith("14 entries of 1 session removed\n")


def test_prune_shows_a_part_of_many(stateroom: Any) -> None:
    async def fill(store: Store) -> None:
        for _ in range(23):
            await (await new(store, 1)).close()

    in_store(fill)
    given = ("store", "prune", "--store", STORE, "--closed-older-than", "0s")
    shown = stateroom(*given, "--dry-run").out
    assert shown.count("all: closed") == 20
    assert "and 3 more; --json lists them all" in shown
    assert len(stateroom(*given, "--json").json["cuts"]) == 23
    assert stateroom("store", "check", "--store", STORE).out == "0 sessions checked: all is well\n"


def test_prune_leaves_what_a_worker_holds(stateroom: Any, ids: list[str]) -> None:
    change("UPDATE sessions SET holder = 'somebody', leased_until = :until", until=time.time() + 60)
    done = stateroom("store", "prune", "--store", STORE, "--keep", 10).out
    assert re.search(rf"^{ids[0]} +notes +nothing: in use by a worker +0$", done, re.MULTILINE)
    assert done.endswith("0 entries of 0 sessions removed\n")


def test_vacuum(stateroom: Any, ids: list[str]) -> None:
    change("UPDATE blobs SET session = 'nobody' WHERE session = :id", id=ids[1])
    shown = stateroom("store", "vacuum", "--store", STORE).out
    assert re.search(r"^blobs +1 +260 kB +120 kB$", shown, re.MULTILINE)
    found = as_json(stateroom, "vacuum", "--store", STORE)
    assert found["before"]["blobs"] == found["after"]["blobs"] == {"rows": 1, "bytes": 120_000}


def test_copy_a_part(stateroom: Any, ids: list[str]) -> None:
    async def add_another(store: Store) -> None:
        session = await new(store, 2)
        await session.call("meet")

    in_store(add_another)
    given = ("copy", "--store", STORE, "--to")
    assert as_json(stateroom, *given, "sqlite:///one.db", "--session", ids[3])["sessions"] == 3
    assert as_json(stateroom, *given, "sqlite:///two.db", "--session", ids[2], "--session", ids[3])["sessions"] == 4
    assert as_json(stateroom, *given, "sqlite:///all.db", "--env", "notes")["sessions"] == 6  # with the user's
    assert as_json(stateroom, *given, "sqlite:///none.db", "--env", "other")["sessions"] == 0


def test_what_cannot_be_copied_is_said(stateroom: Any, ids: list[str]) -> None:
    stateroom("store", "copy", "--store", STORE, "--to", "sqlite:///copy.db")

    async def go_on_in_the_copy(store: Store) -> None:
        await go_on(await sessions_of(store).open(ids[3]), 1)

    in_store(go_on_in_the_copy, "sqlite:///copy.db")
    done = stateroom("store", "copy", "--store", STORE, "--to", "sqlite:///copy.db")
    assert (done.code, done.err) == (1, "")
    assert re.search(rf"^{ids[3]} +the store has a later revision", done.out, re.MULTILINE)
    assert "3 sessions copied and compared" in done.out
    (failed,) = as_json(stateroom, "copy", "--store", STORE, "--to", "sqlite:///copy.db", code=1)["failed"]
    assert failed["session"] == ids[3]


def test_progress_is_shown_when_it_takes_long(stateroom: Any, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert stateroom("store", "check", "--store", STORE).err == ""
    monkeypatch.setattr(output, "BAR_DELAY_SECONDS", 0.0)
    shown = stateroom("store", "copy", "--store", STORE, "--to", "sqlite:///copy.db")
    assert "copying sessions" in shown.err
    assert "4/4" in shown.err
    assert "copying sessions" not in shown.out
    assert stateroom("store", "check", "--store", STORE, "--json").json == {"sessions": 4, "problems": []}


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            f"{command} --store sqlite:///typo.db"
            for command in ("check", "stats", "sweep", "prune --keep 9", "vacuum", "copy --to sqlite:///b.db")
        ),
        "check --store file://./typo.db",
        "check --store nope://",
        "check --store redis://:secret@127.0.0.1:1/0?timeout=0",
        "check",
        "stats --store sqlite:///rooms.db --limit -1",
        "prune --store sqlite:///rooms.db",
        "prune --store sqlite:///rooms.db --older-than 30d",
        "prune --store sqlite:///rooms.db --closed-older-than 30d --older-than 1d",
        "prune --store sqlite:///rooms.db --keep -1",
        "prune --store sqlite:///rooms.db --keep 1 --older-than month",
        "copy --store sqlite:///rooms.db --to sqlite:///rooms.db",
        "copy --store sqlite:///rooms.db --to nope://",
        "copy --store sqlite:///rooms.db",
        "copy --store sqlite:///rooms.db --to sqlite:///b.db --session nope",
        "copy --store sqlite:///rooms.db --to sqlite:///b.db --session a --env b",
    ],
)
def test_a_mistake_is_a_short_message(refuses: Refuses, ids: list[str], arguments: str) -> None:
    refuses("store", *arguments.split())
    assert not Path("typo.db").exists()
    assert not Path("b.db").exists()


def test_a_store_that_fails_midway_is_a_short_message(refuses: Refuses, ids: list[str]) -> None:
    change("DROP TABLE blobs")
    refuses("store", "check", "--store", STORE)
