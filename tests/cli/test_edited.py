"""Episodes whose state a person has edited: every command that compares them says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.gallery import CounterEnvironment
from stateroom.store import Store
from tests.cli.conftest import in_store
from tests.rows import rows


@pytest.fixture
def rollouts(stateroom: Any, tmp_path: Path) -> Path:
    """A run, in whose first episode a person has edited the state after its first call."""
    path = tmp_path / "out.jsonl"
    assert stateroom("run", "counter", "--limit", "3", "--output", path).code == 0
    first, *others = rows(path)

    async def edit(store: Store) -> str:
        session = await Sessions(CounterEnvironment(), store).open(first["_stateroom_session"], include_closed=True)
        first_call = (await anext(session.log(kinds={"call"}))).revision
        fork = await session.fork(first_call)
        await fork.edit([{"place": ["value"], "value": 1000}], by="ada", reason="what if")
        await fork.call("increment_counter", {"count": 1})
        await fork.verify(first["response"])
        return fork.id

    first["_stateroom_session"] = in_store(edit, f"sqlite:///{tmp_path / 'out_sessions.db'}")
    path.write_text("".join(json.dumps(row) + "\n" for row in (first, *others)))
    return path


def test_replay_names_an_edited_session_and_does_not_call_it_comparable(
    stateroom: Any, rollouts: Path, tmp_path: Path
) -> None:
    outcome = stateroom("replay", rollouts, "--env", "counter")
    session = rows(rollouts)[0]["_stateroom_session"]
    assert outcome.code == 0
    assert f"session {session}: edited by ada at revision" in outcome.out
    store = f"sqlite:///{tmp_path / 'out_sessions.db'}"
    alone = stateroom("replay", session, "--env", "counter", "--store", store, "--json")
    found = alone.json
    assert (alone.code, found["edited"], found["differences"], found["calls"]) == (1, 1, 0, 2)
    assert "all match" not in stateroom("replay", session, "--env", "counter", "--store", store).out


def test_reverify_marks_an_edited_row_and_compare_leaves_it_out(stateroom: Any, rollouts: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    outcome = stateroom("reverify", rollouts, "--env", "counter", "--output", again, "-c", "1")
    assert "1 episode was edited by a person" in outcome.out
    scored = rows(again)
    assert [row.get("_stateroom_edited") for row in scored] == [True, None, None]
    assert scored[0]["reward"] == 0.0  # of the state as it is
    compared = stateroom("compare", rollouts, again)
    assert "only A" not in compared.err
    assert "1 episode was edited by a person: task 0" in compared.err.replace("\n", " ")
    found = stateroom("compare", rollouts, again, "--json").json
    assert (found["edited"], [task["task"] for task in found["tasks"]]) == ([[0, 0]], [1, 2])
    before = stateroom("reverify", again, "--env", "counter", "--output", tmp_path / "before.jsonl", "--at", "1",
                       "--store", f"sqlite:///{tmp_path / 'out_sessions.db'}", "-c", "1")  # fmt: skip
    assert before.code == 0
    assert not any("_stateroom_edited" in row for row in rows(tmp_path / "before.jsonl"))


def test_without_its_session_an_edited_row_is_not_replayed(stateroom: Any, rollouts: Path, tmp_path: Path) -> None:
    [row, *_] = rows(rollouts)
    alone = tmp_path / "alone.jsonl"
    alone.write_text(json.dumps({**row, "_stateroom_session": "gone", "_stateroom_edited": True}) + "\n")
    outcome = stateroom("replay", alone, "--env", "counter")
    assert outcome.code == 1
    assert "a person edited the state" in outcome.out
