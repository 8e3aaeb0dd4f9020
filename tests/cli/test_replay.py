"""`stateroom replay`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuses
from tests.messages import says

ODD = '''
from stateroom import State, tool
from stateroom.gallery import Counter, CounterEnvironment


class Odd(CounterEnvironment):
    """Adds one more than it should to what is odd."""

    name = "counter"

    @tool
    def increment_counter(self, state: Counter, count: int) -> dict[str, bool]:
        """Add to the counter."""
        state.value += count + count % 2
        return {"success": True}
'''


@pytest.fixture
def rollouts(stateroom: Any, tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(ODD)
    assert stateroom("run", "counter", "--output", "out.jsonl").code == 0
    return tmp_path / "out.jsonl"


def test_rollouts_replay(stateroom: Any, rollouts: Path) -> None:
    outcome = stateroom("replay", rollouts, "--env", "counter")
    assert outcome.code == 0
    assert "8 episodes of counter replayed: all as on record" in outcome.out
    outcome = stateroom("replay", rollouts, "--env", "counter", "--reads", "check", "--json")
    found = outcome.json
    assert (found["replayed"], found["reads"], found["left_out"], found["differences"]) == (8, 8, 0, 0)
    assert found["calls"] == sum(each["calls"] for each in found["episodes"]) > 8


def test_the_first_difference_is_shown(stateroom: Any, rollouts: Path) -> None:
    outcome = stateroom("replay", rollouts, "--env", "own.py:Odd")
    assert outcome.code == 1
    assert "1 differs" in outcome.out
    assert "increment_counter(" in outcome.out
    assert "state, recorded → now:\n    value: " in outcome.out
    assert "recorded: " not in outcome.out  # the output is the same
    assert "The replay stopped there" in outcome.out


def test_lenient_counts_differences(stateroom: Any, rollouts: Path) -> None:
    outcome = stateroom("replay", rollouts, "-e", "own.py:Odd", "--lenient", "--reads", "check", "--json")
    assert outcome.code == 1
    found = outcome.json
    assert len(found["episodes"]) == 8
    assert found["differences"] > found["differing"] > 1
    outcome = stateroom("replay", rollouts, "-e", "own.py:Odd", "--lenient", "--reads", "check")
    assert "recorded: {" in outcome.out
    assert "--json lists them all" in outcome.out


def test_rollouts_replay_without_a_store(stateroom: Any, rollouts: Path) -> None:
    for path in rollouts.parent.glob("out_sessions.db*"):
        path.unlink()
    found = stateroom("replay", rollouts, "-e", "own.py:Odd", "--json").json
    assert (found["differing"], found["left_out"]) == (0, 8)  # only a read would tell
    assert stateroom("replay", rollouts, "-e", "own.py:Odd", "--reads", "check").code == 1


def test_a_session_replays(stateroom: Any, rollouts: Path) -> None:
    sessions = [json.loads(line)["_stateroom_session"] for line in rollouts.read_text().splitlines()]
    store = ("--store", "sqlite:///out_sessions.db")
    assert "1 episode of counter replayed: all as" in stateroom("replay", sessions[0], "-e", "counter", *store).out
    codes = [stateroom("replay", session, "-e", "own.py:Odd", *store).code for session in sessions]
    assert 1 in codes


def test_what_is_refused_is_told(stateroom: Any, rollouts: Path) -> None:
    outcome = stateroom("replay", rollouts, "-e", "extraction")
    assert outcome.code == 1
    says(outcome.out)


def test_mistakes_are_messages(refuses: Refuses, rollouts: Path) -> None:
    store = ("--store", "sqlite:///out_sessions.db")
    for arguments in (
        ("nowhere", "-e", "counter"),
        ("nowhere", "-e", "counter", *store),
        ("nowhere", "-e", "counter", "--store", "sqlite:///none.db"),
        ("nowhere", "-e", "counter", "--reads", "check", *store),
    ):
        refuses("replay", *arguments)
