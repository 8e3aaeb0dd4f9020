"""`stateroom reverify --judge-failed-only`, and the example that it is for."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuses
from tests.rows import rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "judged.py"
ENVIRONMENT = f"{EXAMPLE}:LetterEnvironment"


@pytest.fixture
def letters(stateroom: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight episodes, of which four wait for a judge; by then it is itself again."""
    monkeypatch.setenv("JUDGE", "mumbling")
    outcome = stateroom("run", ENVIRONMENT, "--output", "letters.jsonl")
    assert outcome.code == 1
    assert "8 episodes of letter" in outcome.out
    assert "perhaps a 2, or a 1 on a bad day" in outcome.out
    monkeypatch.delenv("JUDGE")
    return Path("letters.jsonl")


def judge(stateroom: Any, *more: Any) -> Any:
    return stateroom("reverify", "letters.jsonl", "--env", ENVIRONMENT, "--judge-failed-only", *more)


def test_it_fails_while_the_judge_does_and_then_scores_the_rest(
    stateroom: Any, letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE", "mumbling")
    before = Path("letters_failures.jsonl").read_bytes()
    outcome = judge(stateroom)
    assert outcome.code == 1
    assert "0 episodes of letter scored, 4 refused" in outcome.out
    assert "3 of 3 votes of " in outcome.out
    assert Path("letters_failures.jsonl").read_bytes() == before
    monkeypatch.delenv("JUDGE")
    found = judge(stateroom, "--json").json
    assert (found["episodes"], found["refused"], found["reasons"], found["rewards"]["new"]) == (4, 0, {}, 4)
    assert found["metrics"]["mean/reward"] == 1.0
    assert sorted(found["files"]) == ["inputs", "metrics", "rollouts", "run", "sessions"]
    again = judge(stateroom)  # there is nothing left to do
    assert (again.code, "0 episodes of letter scored" in again.out) == (0, True)


def test_mistakes_are_messages(refuses: Refuses, letters: Path) -> None:
    for arguments in (
        ("letters.jsonl", "--judge-failed-only", "--output", "new.jsonl"),
        ("letters.jsonl", "--judge-failed-only", "--at", "1"),
        ("letters.jsonl",),
        ("nowhere.jsonl", "--judge-failed-only"),
        ("letters.jsonl", "--judge-failed-only", "--store", "sqlite:///gone.db"),
    ):
        refuses("reverify", *arguments, "--env", ENVIRONMENT)
    assert len(rows("letters_failures.jsonl")) == 4
