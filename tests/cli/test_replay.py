"""`stateroom replay`."""

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


def test_with_lenient_all_differences_are_counted(stateroom: Any, rollouts: Path) -> None:
    lenient = ("replay", rollouts, "-e", "own.py:Odd", "--lenient", "--reads", "check")
    outcome = stateroom(*lenient, "--json")
    assert (outcome.code, len(outcome.json["episodes"])) == (1, 8)
    assert outcome.json["differences"] > outcome.json["differing"] > 1
    outcome = stateroom(*lenient)
    assert "recorded: {" in outcome.out
    assert "--json lists them all" in outcome.out


def test_rollouts_replay_without_a_store(stateroom: Any, rollouts: Path) -> None:
    for path in rollouts.parent.glob("out_sessions.db*"):
        path.unlink()
    found = stateroom("replay", rollouts, "-e", "own.py:Odd", "--json").json
    assert (found["differing"], found["left_out"]) == (0, 8)  # only a read would tell
    assert stateroom("replay", rollouts, "-e", "own.py:Odd", "--reads", "check").code == 1


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
