"""`stateroom studio`: what a user may get wrong. How it serves is tested in `tests/studio`."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", "a secret that is only good for tests")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("command", [["studio"], ["serve", "counter", "--studio"]])
def test_elsewhere_it_needs_a_token(stateroom: Any, command: list[str]) -> None:
    outcome = stateroom(*command, "--host", "0.0.0.0", "--port", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--studio-token" in outcome.err
    assert "--host 127.0.0.1" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--store", "sqlite:///none.db"], "error: there is no store sqlite:///none.db: the file none.db does not"),
        (["nothing"], "error: no environment is named 'nothing'"),
    ],
)
def test_what_cannot_be_opened(stateroom: Any, arguments: list[str], problem: str) -> None:
    outcome = stateroom("studio", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(problem)


def test_a_folder_of_runs_that_is_not_there(stateroom: Any) -> None:
    outcome = stateroom("studio", "--runs", "none")
    assert outcome.code == 2
    assert "--runs" in outcome.err
